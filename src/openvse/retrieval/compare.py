"""Two-tower models side by side on the same images and texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
from jaxtyping import Float, Int

from openvse.batches import with_features
from openvse.corpus import Corpus
from openvse.errors import DataError
from openvse.evaluation import AnsweredQueries, AnsweredQuery, Comparison, MeasuredRun, Row
from openvse.evaluation.findings import largest_changes
from openvse.evaluation.report import QueryOutcomes
from openvse.features import open_store
from openvse.model import TwoTower
from openvse.retrieval.evaluate import (
    SIDES,
    embed_requested,
    leakage_lines,
    open_captioned,
    report_on,
    shown_item,
)
from openvse.training.kind import Compared, LoadedRun, Request
from openvse.types import FeatureSource

_KEPT = 1
"""How many first results of each query are kept for the examples."""


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
    found: list[QueryOutcomes] = [getattr(row.runs[0].found, side) for row in rows]
    query, asks_with_image = int(found[0].queries[number]), side == "i2t"
    pairs = corpus.relevance
    asking, asked = (pairs.images, pairs.texts) if asks_with_image else (pairs.texts, pairs.images)
    right: Int[np.ndarray, "R"] = asked[asking == query]
    first = [int(each.found[number, 0]) for each in found]
    return AnsweredQuery(
        query=shown_item(corpus, query, is_image=asks_with_image),
        right=shown_item(corpus, int(right[0]), is_image=not asks_with_image),
        found=tuple(shown_item(corpus, position, is_image=not asks_with_image) for position in first),
        results=tuple(_place(each[number], len(row.runs)) for each, row in zip(ranks, rows, strict=True)),
        hits=tuple(position in right for position in first),
    )


def compare_towers(loaded: Iterable[LoadedRun], request: Request) -> Compared:
    """Rank the same images and texts with each run, one run in memory at a time.

    Args:
        loaded: the runs; their models are two towers.
        request: what to compare on; ``request.features`` holds one store for all models, or one a model.

    Raises:
        OpenVSEError: the data or a store cannot be used, or the models cannot read the same images.
    """
    corpus = request.part(open_captioned(request))
    runs: list[MeasuredRun] = []
    done = 0
    for run in loaded:
        models = cast("tuple[TwoTower, ...]", run.models)
        stores = [open_store(request.store(done + n), model.image.encoder) for n, model in enumerate(models)]
        done += len(models)
        for store in stores:
            corpus = _same_images(corpus, store, run.source, is_first=not runs)
        embedded = embed_requested(models, corpus, stores, request)
        corpus = _same_images(corpus, None, run.source, is_first=not runs, kept=embedded.corpus)
        report = report_on(models, embedded, replace(request, rerank=run.rerank, keep=_KEPT), corpus.name)
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
        problems=corpus.problems,
        folds=request.folds,
    )
    return Compared(tuple(runs), frame, partial(_examples, corpus))


def _same_images(
    corpus: Corpus, store: FeatureSource | None, source: str, *, is_first: bool, kept: Corpus | None = None
) -> Corpus:
    """Return the images that a model can read; they must be those of the models before it.

    Raises:
        DataError: it reads fewer images than the models before it.
    """
    readable = with_features(corpus, store) if kept is None else kept
    if not is_first and len(readable) < len(corpus):
        raise DataError(
            f"{source} can read {len(readable)} of the {len(corpus)} images that the runs before it read: name it "
            f"first, or extract its features from the same images"
        )
    return readable


def _place(rank: float, runs: int) -> str:
    mean = f" (mean of {runs} runs)" if runs > 1 else ""
    return "first hit" if rank == 1 else f"first hit; right at {rank:.4g}{mean}"
