"""Two-tower models side by side on the same images and texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from jaxtyping import Float, Int

from openvse.batches import with_features
from openvse.corpus import Corpus, seen_in_training
from openvse.errors import DataError
from openvse.evaluation import AnsweredQueries, AnsweredQuery, Comparison, MeasuredRun, Row
from openvse.evaluation.findings import largest_changes
from openvse.evaluation.report import Outcomes, QueryOutcomes
from openvse.features import open_store
from openvse.model import TwoTower
from openvse.retrieval.evaluate import SIDES, embed_requested, open_captioned, report_on, shown_item
from openvse.training.kind import LoadedRun, Request
from openvse.types import FeatureSource

_KEPT = 1
"""How many first results of each query are kept for the examples."""


@dataclass(frozen=True)
class ComparedTowers:
    """Models on the same corpus; see ``training.kind.Compared``."""

    corpus: Corpus
    request: Request
    runs: tuple[MeasuredRun, ...]
    outcomes: tuple[Outcomes, ...]

    def comparison(self, rows: Sequence[Row]) -> Comparison:
        """Return a comparison of rows of these runs."""
        return Comparison(
            name=self.corpus.name,
            size={"images": len(self.corpus), "texts": len(self.corpus.captions)},
            seed=self.request.seed,
            resamples=self.request.resamples,
            rows=tuple(rows),
            problems=self.corpus.problems,
            folds=self.request.folds,
        )

    def examples(self, first: Row, second: Row, count: int) -> list[AnsweredQueries]:
        """Return the queries whose ranks differ most; what is found is that of the first run of each row."""
        return [self._examples(title, side, first, second, count) for side, title in SIDES]

    def _examples(self, title: str, side: str, first: Row, second: Row, count: int) -> AnsweredQueries:
        ranks = tuple(-row.queries()[side] for row in (first, second))
        found = tuple(self._outcomes(row, side) for row in (first, second))
        better, worse = (
            tuple(
                self._example(side, int(query), ranks, found, (len(first.runs), len(second.runs)))
                for query in queries
            )
            for queries in largest_changes(np.log(ranks[0] / ranks[1]), count)
        )
        return AnsweredQueries(title, better, worse)

    def _outcomes(self, row: Row, side: str) -> QueryOutcomes:
        number = next(number for number, run in enumerate(self.runs) if run is row.runs[0])
        both = self.outcomes[number]
        return both.i2t if side == "i2t" else both.t2i

    def _example(
        self,
        side: str,
        number: int,
        ranks: Sequence[Float[np.ndarray, "Q"]],
        found: Sequence[QueryOutcomes],
        runs: tuple[int, int],
    ) -> AnsweredQuery:
        query = int(found[0].queries[number])
        pairs = self.corpus.relevance
        asking, asked = (pairs.images, pairs.texts) if side == "i2t" else (pairs.texts, pairs.images)
        right: Int[np.ndarray, "R"] = asked[asking == query]
        first = [int(each.found[number, 0]) for each in found]
        return AnsweredQuery(
            query=shown_item(self.corpus, query, is_image=side == "i2t"),
            right=shown_item(self.corpus, int(right[0]), is_image=side != "i2t"),
            found=(
                shown_item(self.corpus, first[0], is_image=side != "i2t"),
                shown_item(self.corpus, first[1], is_image=side != "i2t"),
            ),
            results=(_place(ranks[0][number], runs[0]), _place(ranks[1][number], runs[1])),
            hits=(first[0] in right, first[1] in right),
        )


def compare_towers(loaded: Iterable[LoadedRun], request: Request) -> ComparedTowers:
    """Rank the same images and texts with each run, one run in memory at a time.

    Args:
        loaded: the runs; their models are two towers.
        request: what to compare on; ``request.features`` holds one store for all models, or one a model.

    Raises:
        OpenVSEError: the data or a store cannot be used, or the models cannot read the same images.
    """
    corpus = request.part(open_captioned(request))
    runs: list[MeasuredRun] = []
    outcomes: list[Outcomes] = []
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
        outcomes.append(report.outcomes)
        queries = {"i2t": -1.0 * report.outcomes.i2t.ranks, "t2i": -1.0 * report.outcomes.t2i.ranks}
        warnings = tuple(_warnings(run.source, models, corpus))
        measured = report.metrics, report.replicates, queries, warnings
        runs.append(MeasuredRun(run.source, report.model, *measured))
    return ComparedTowers(corpus, request, tuple(runs), tuple(outcomes))


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


def _warnings(source: str, models: Sequence[TwoTower], corpus: Corpus) -> Iterator[str]:
    for model in models:
        if line := seen_in_training(model.provenance, corpus).describe(source):
            yield line
