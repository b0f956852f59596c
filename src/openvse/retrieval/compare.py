"""Two-tower models side by side on the same images and texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
from jaxtyping import Float, Int

from openvse.batches.loaders import with_features
from openvse.corpus import Corpus
from openvse.datasets.check import leakage_between_splits
from openvse.encoders.transformers_text import states_can_be_stored
from openvse.errors import DataError
from openvse.evaluation.comparison import Comparison, MeasuredRun, Row
from openvse.evaluation.findings import AnsweredQueries, AnsweredQuery, largest_changes
from openvse.evaluation.report import QueryOutcomes
from openvse.features.extract import extract_text_features
from openvse.features.store import open_token_states
from openvse.model.two_tower import TwoTower
from openvse.pipeline import WorkProgress
from openvse.retrieval.evaluate import (
    SIDES,
    embed_requested,
    leakage_lines,
    open_captioned,
    report_on,
    shown_item,
    stores_for,
)
from openvse.training.kind import Compared, LoadedRun, Request
from openvse.types import FeatureSource, OnProgress

_FIRST_HITS = 1
"""The number of first results of each query kept for the examples."""


def _examples(corpus: Corpus, first: Row, second: Row, count: int) -> list[AnsweredQueries]:
    """Return the queries whose ranks differ most."""
    return [_of_side(corpus, title, side, (first, second), count) for side, title in SIDES]


def _of_side(corpus: Corpus, title: str, side: str, rows: tuple[Row, Row], count: int) -> AnsweredQueries:
    ranks = [-row.queries()[side] for row in rows]
    better, worse = (
        tuple(_example(corpus, side, int(query), rows, ranks) for query in queries)
        for queries in largest_changes(np.log(ranks[0] / ranks[1]), count)
    )
    return AnsweredQueries(title, better, worse)


def _example(
    corpus: Corpus, side: str, number: int, rows: tuple[Row, Row], ranks: Sequence[Float[np.ndarray, "Q"]]
) -> AnsweredQuery:
    outcomes: list[QueryOutcomes] = [getattr(row.runs[0].outcomes, side) for row in rows]
    query, asks_with_image = int(outcomes[0].queries[number]), side == "i2t"
    pairs = corpus.relevance
    asking, asked = (pairs.images, pairs.texts) if asks_with_image else (pairs.texts, pairs.images)
    right: Int[np.ndarray, "R"] = asked[asking == query]
    first = [int(each.hits[number, 0]) for each in outcomes]
    return AnsweredQuery(
        query=shown_item(corpus, query, is_image=asks_with_image),
        right=shown_item(corpus, int(right[0]), is_image=not asks_with_image),
        answers=tuple(shown_item(corpus, position, is_image=not asks_with_image) for position in first),
        results=tuple(_place(each[number], len(row.runs)) for each, row in zip(ranks, rows, strict=True)),
        hits=tuple(position in right for position in first),
    )


def compare_towers(loaded: Iterable[LoadedRun], request: Request) -> Compared:
    """Rank the same images and texts with each run, one run in memory at a time.

    The runs are loaded twice, because all are checked before anything is embedded. Texts that several runs read with
    the same frozen text model are read once.
    """
    whole = open_captioned(request)
    shares_texts, reads_images = _check(loaded, request.part(whole), request)
    if reads_images:  # the files must exist
        whole = open_captioned(request, require_images=True)
    corpus, shared = request.part(whole), leakage_between_splits(whole, request.split)
    runs: list[MeasuredRun] = []
    done = 0
    with TemporaryDirectory() as states:
        for run in loaded:
            models = cast("tuple[TwoTower, ...]", run.models)
            asked = replace(request, places=run.places, rerank=run.rerank, keep=_FIRST_HITS)
            if shares_texts:
                asked = _with_states(models, corpus, asked, Path(states))
            stores = stores_for(models, corpus, asked, first=done, several=True)
            done += len(models)
            for store in stores:
                corpus = _same_images(corpus, store, run.source, is_first=not runs)
            embedded = embed_requested(models, corpus, stores, asked)
            corpus = _same_images(corpus, None, run.source, is_first=not runs, embedded=embedded.corpus)
            report = report_on(models, embedded, asked, corpus.name)
            assert report.outcomes is not None
            queries = {"i2t": -1.0 * report.outcomes.i2t.ranks, "t2i": -1.0 * report.outcomes.t2i.ranks}
            warnings = leakage_lines(((run.source, model) for model in models), corpus)
            measured = report.metrics, report.replicates, queries, warnings, report.outcomes
            runs.append(MeasuredRun(run.source, report.model, *measured))
    frame = Comparison(
        name=corpus.name,
        size={"images": len(corpus), "texts": len(corpus.captions)},
        seed=request.seed,
        resamples=request.resamples,
        problems=(*shared, *corpus.problems),
        folds=request.folds,
    )
    return Compared(tuple(runs), frame, partial(_examples, corpus))


def _check(loaded: Iterable[LoadedRun], corpus: Corpus, request: Request) -> tuple[bool, bool]:
    """Open the inputs of all runs. Return whether frozen text models are the same, and whether images are read."""
    makers: list[str] = []
    done, reads_images = 0, False
    for run in loaded:
        models = cast("tuple[TwoTower, ...]", run.models)
        reads_images |= None in stores_for(models, corpus, request, first=done, several=True)
        done += len(models)
        for model in models:
            encoder = model.text.encoder
            open_token_states(request.text_features, encoder)
            if states_can_be_stored(encoder):
                makers.append(encoder.fingerprint)
    return request.text_features is None and len(set(makers)) < len(makers), reads_images


def _with_states(models: Sequence[TwoTower], corpus: Corpus, request: Request, folder: Path) -> Request:
    """Store the states of the texts from frozen text models that are missing in a folder of stores."""
    for model in models:
        encoder = model.text.encoder
        if states_can_be_stored(encoder):
            store = folder / hashlib.sha256(encoder.fingerprint.encode()).hexdigest()[:16]
            extract_text_features(
                encoder,
                corpus.captions,
                store,
                batch_size=request.batch_size,
                device=model.device,
                dtype="float32",
                progress=partial(_show, request.progress) if request.progress else None,
            )
    return replace(request, text_features=folder)


def _show(progress: OnProgress, state: WorkProgress) -> None:
    progress("reading sentences", state.done, state.total)


def _same_images(
    corpus: Corpus,
    store: FeatureSource | None,
    source: str,
    *,
    is_first: bool,
    embedded: Corpus | None = None,
) -> Corpus:
    """Return the readable images. Raise DataError if the models before read others."""
    readable = with_features(corpus, store) if embedded is None else embedded
    if not is_first and len(readable) < len(corpus):
        raise DataError(
            f"{source} can read {len(readable)} of the {len(corpus)} images that the earlier runs read: name it "
            f"first, or extract its features from the same images"
        )
    return readable


def _place(rank: float, runs: int) -> str:
    mean = f" (mean of {runs} runs)" if runs > 1 else ""
    return "first hit" if rank == 1 else f"first hit (right at {rank:.4g}{mean})"
