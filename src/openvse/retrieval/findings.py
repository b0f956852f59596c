"""What a report shows of the evaluation of two towers: its figures, and the best and the worst queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from openvse.corpus import Corpus
from openvse.errors import OpenVSEError
from openvse.evaluation.findings import AnsweredQueries, AnsweredQuery, Findings, Shown
from openvse.evaluation.report import QueryOutcomes, Report
from openvse.retrieval.evaluate import RetrievalEvaluation

SHOWN = 4
"""The number of first results that a report shows of each query."""

_SIDES = (("t2i", "Texts asking for images"), ("i2t", "Images asking for texts"))


def findings_of(evaluation: RetrievalEvaluation, count: int) -> Findings:
    """Return what a report shows of an evaluation.

    Args:
        evaluation: an evaluation of one model that has kept first results (``Request.keep``).
        count: the number of best and of worst queries of each direction.

    Raises:
        OpenVSEError: it follows a protocol of judged pairs, which has no report.
    """
    report = evaluation.report
    if not isinstance(report, Report):
        raise OpenVSEError(
            f"protocol {report.protocol} has figures of its own kind: use 'openvse evaluate' for it"
        )
    return Findings(
        data=report.protocol.name,
        size={"num_images": report.protocol.num_images, "folds": report.protocol.folds},
        metrics=report.metrics,
        intervals=report.intervals,
        beside=report.beside(),
        notes=tuple(report.protocol_lines()),
        problems=report.problems,
        reliability=report.reliability,
        queries=tuple(_queries(evaluation, report, count)) if count else (),
    )


def _queries(evaluation: RetrievalEvaluation, report: Report, count: int) -> Iterator[AnsweredQueries]:
    if report.outcomes is None or evaluation.corpus is None:
        return
    for side, title in _SIDES:
        found = report.outcomes.i2t if side == "i2t" else report.outcomes.t2i
        yield _Direction(evaluation.corpus, side, found).queries(title, count)


class _Direction:
    """The queries of one direction, with what each of them has found."""

    def __init__(self, corpus: Corpus, side: str, found: QueryOutcomes) -> None:
        self._corpus, self._found, self._asks_with_image = corpus, found, side == "i2t"
        pairs = corpus.relevance
        asking, asked = (pairs.images, pairs.texts) if side == "i2t" else (pairs.texts, pairs.images)
        order = np.argsort(asking, kind="stable")
        self._asked = asked[order]
        self._starts = np.searchsorted(asking[order], np.arange(asking.max() + 2))

    def queries(self, title: str, count: int) -> AnsweredQueries:
        """Return those that are right at once by the widest margin, and those whose right answer is farthest."""
        ranks = self._found.ranks
        margins = np.where(ranks == 1, self._margins(), -np.inf)
        best = [number for number in np.argsort(-margins, kind="stable").tolist() if ranks[number] == 1]
        worst = [number for number in np.argsort(-ranks, kind="stable").tolist() if ranks[number] > 1]
        return AnsweredQueries(
            title,
            tuple(map(self._shown, self._different(best, count))),
            tuple(map(self._shown, self._different(worst, count))),
        )

    def _right(self, number: int) -> Int[np.ndarray, "R"]:
        query = int(self._found.queries[number])
        return self._asked[self._starts[query] : self._starts[query + 1]]

    def _margins(self) -> Float[np.ndarray, "Q"]:
        """Return by how much the first result of each query scores better than the first wrong one after it."""
        scores = self._found.scores
        margins = np.zeros(len(scores))
        for number, found in enumerate(self._found.found):
            wrong = np.flatnonzero(~np.isin(found, self._right(number)))
            margins[number] = scores[number, 0] - scores[number, wrong[0] if len(wrong) else -1]
        return margins

    def _different(self, numbers: Sequence[int], count: int) -> Iterator[int]:
        """Yield queries in their order, at most one for each image, so that its captions do not fill the list."""
        seen: set[int] = set()
        for number in numbers:
            image = int(self._found.queries[number]) if self._asks_with_image else int(self._right(number)[0])
            if image not in seen and len(seen) < count:
                seen.add(image)
                yield number

    def _shown(self, number: int) -> AnsweredQuery:
        right, rank = self._right(number), int(self._found.ranks[number])
        found = self._found.found[number, :SHOWN].tolist()
        hits = tuple(position in right for position in found)
        return AnsweredQuery(
            query=self._item(int(self._found.queries[number]), is_image=self._asks_with_image),
            found=tuple(self._item(position, is_image=not self._asks_with_image) for position in found),
            hits=hits,
            right=None if any(hits) else self._item(int(right[0]), is_image=not self._asks_with_image),
            results=("right at once" if rank == 1 else f"right at {rank:,}",),
        )

    def _item(self, position: int, *, is_image: bool) -> Shown:
        if is_image:
            return Shown(self._corpus.image_ids[position], self._corpus.image_paths[position])
        return Shown(self._corpus.captions[position])
