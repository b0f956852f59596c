"""Evaluation against judgements of single pairs: recall in all directions, and correlation with ratings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.errors import DataError
from openvse.evaluation.ensemble import Member, Scorer
from openvse.evaluation.metrics import RECALL_AT, grouped_intervals
from openvse.evaluation.places import SEVERAL
from openvse.evaluation.ranking import QueryRanks, rank_by_counting
from openvse.evaluation.report import metric_title
from openvse.output.documents import Document
from openvse.output.table import Table
from openvse.types import EmbeddingSet, Relevance

BOOTSTRAPS = 1000
"""The number of samples of the correlation with ratings."""

_ITSELF = -1e30


@dataclass(frozen=True)
class Direction:
    """One kind of retrieval.

    Attributes:
        queries: the number of queries that have a positive item.
        gallery: the number of candidates of a query.
        metrics: in percent.
        intervals: the lower and upper bound of each metric, from a bootstrap over the images of the queries.
    """

    queries: int
    gallery: int
    metrics: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation with ratings, times 100: mean and standard deviation over the samples.

    Attributes:
        pairs: the number of rated pairs.
        queries: the number of different first items.
        mean: over the samples.
        spread: over the samples.
    """

    pairs: int
    queries: int
    mean: float
    spread: float


@dataclass(frozen=True)
class JudgedReport(Document):
    """Retrieval and correlations against published judgements.

    Attributes:
        protocol: the name of the protocol.
        name: the data set and split.
        retrieval: each direction, such as "image to text".
        correlations: each kind of pairs, such as "image-text".
        model: the fingerprint of the model.
        problems: what was left out, one line each.
        notes: how it was done, one line each.
    """

    protocol: str
    name: str
    retrieval: Mapping[str, Direction]
    correlations: Mapping[str, Correlation] = field(default_factory=dict)
    model: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def sections(self) -> list[str]:
        names = list(next(iter(self.retrieval.values())).metrics)
        titles = [metric_title(f"i2t_{name}").removeprefix("i2t ") for name in names]
        rows = []
        for side, one in self.retrieval.items():
            figures = [f"{one.metrics[name]:.1f}" for name in names]
            rows.append([side, *figures, f"{one.queries:,}", f"{one.gallery:,}"])
            if one.intervals:
                bounds = [one.intervals[name] for name in names]
                rows.append(["", *(f"{low:.1f} to {high:.1f}" for low, high in bounds), "", ""])
        sections = [
            f"# {self.protocol} on {self.name}",
            Table(["", *titles, "queries", "gallery"], rows).to_markdown(),
        ]
        if self.correlations:
            remarks = [
                [kind, f"{one.mean:.1f} ± {one.spread:.1f}", f"{one.pairs:,}", f"{one.queries:,}"]
                for kind, one in self.correlations.items()
            ]
            sections.append(Table(["", "Spearman x 100", "pairs", "queries"], remarks).to_markdown())
        lines = [*self.notes, *([f"model {self.model}"] if self.model else [])]
        sections.append("\n".join(f"- {line}" for line in lines))
        return sections


def rank_among(
    queries: EmbeddingSet,
    candidates: EmbeddingSet,
    positives: tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P"]],
    similarity: Scorer,
    *,
    itself: bool = False,
    every: bool = False,
    block_size: int = 512,
    swapped: bool = False,
) -> QueryRanks:
    """Rank candidates for queries of any modality; queries without a positive are left out.

    Args:
        queries: Q embedded items.
        candidates: the embedded gallery.
        positives: query and candidate of each positive pair.
        similarity: the function that scores blocks.
        itself: whether query n is candidate n, which is then never ahead of a positive.
        every: whether to place all positives.
        block_size: the side of a block of scores.
        swapped: whether the similarity takes the candidates first (images are asked for by texts).

    Returns:
        The ranks of the queries that have a positive, numbered in their order.

    Raises:
        DataError: there is no positive pair.
        ModelError: a score is NaN or infinite.
    """
    asking, rows_of_pairs = np.unique(positives[0], return_inverse=True)
    asked = queries[torch.from_numpy(asking)]
    pairs = Relevance(rows_of_pairs, positives[1], len(asking), len(candidates))

    member = Member(
        asked, candidates, (lambda one, other: similarity(other, one).T) if swapped else similarity
    )

    def score(rows: slice, columns: slice) -> Float[Tensor, "Q C"]:
        scores = member.score(rows, columns, candidates.vectors.device)
        if itself:
            place = asking[rows] - columns.start
            inside = np.flatnonzero((place >= 0) & (place < columns.stop - columns.start))
            scores = scores.clone()
            scores[torch.from_numpy(inside), torch.from_numpy(place[inside])] = _ITSELF
        return scores

    with torch.inference_mode():
        return rank_by_counting(score, pairs, block_size=block_size, every=every).i2t


def recalls(ranked: QueryRanks, images: Int[np.ndarray, "Q"], *, resamples: int = BOOTSTRAPS) -> Direction:
    """Return R@1, R@5 and R@10 of one direction, with intervals.

    Args:
        images: the image that each of its queries is or belongs to; they are drawn together.
        resamples: the number of resamples for the intervals; 0 leaves them out.
    """
    return _measured(ranked, {f"r{k}": ranked.ranks <= k for k in RECALL_AT}, images, resamples)


def precisions(
    ranked: QueryRanks,
    missing: Int[np.ndarray, "M"],
    images: Int[np.ndarray, "Q"],
    *,
    resamples: int = BOOTSTRAPS,
) -> Direction:
    """Return mAP@R, R-Precision and R@1 of one direction whose positives are all placed, with intervals.

    Args:
        ranked: the ranks, with places.
        missing: the query of each positive item that is not in the gallery; R counts these items, too.
    """
    assert ranked.places is not None
    every = ranked.places.with_missing(missing).columns()
    columns = {name: every[:, SEVERAL.index(name)] for name in ("map_at_r", "rprecision")}
    return _measured(ranked, {**columns, "r1": ranked.ranks <= 1}, images, resamples)


def _measured(
    ranked: QueryRanks, columns: Mapping[str, np.ndarray], images: Int[np.ndarray, "Q"], resamples: int
) -> Direction:
    """Return the means of what counts for each query, in percent, with intervals."""
    counted = np.column_stack([*columns.values()]).astype(np.float64)
    metrics = dict(zip(columns, (100.0 * counted.mean(axis=0)).tolist(), strict=True))
    intervals = grouped_intervals(counted, list(columns), images, resamples=resamples, seed=0)
    return Direction(len(ranked.queries), ranked.num_candidates, metrics, intervals)


def bootstrap_correlation(
    queries: Int[np.ndarray, "P"],
    ratings: Float[np.ndarray, "P"],
    scores: Float[np.ndarray, "P"],
    *,
    samples: int = BOOTSTRAPS,
    seed: int = 0,
) -> Correlation:
    """Return the sampled Spearman correlation of Crisscrossed Captions (Parekh et al., EACL 2021).

    A query has several rated pairs, which are not independent. Therefore each sample draws half of the queries
    without replacement and one pair of each, and takes Spearman's correlation of their ratings and scores; the result
    is the mean over the samples. Equal values have the mean of their ranks.
    """
    order = np.argsort(queries, kind="stable")
    _, starts, counts = np.unique(queries[order], return_index=True, return_counts=True)
    if len(starts) < 4:
        raise DataError(
            f"{len(starts)} queries have ratings, and a correlation needs at least 4: give more pairs"
        )
    generator = np.random.default_rng(seed)
    correlations = []
    for _ in range(samples):
        half = generator.permutation(len(starts))[: len(starts) // 2]
        pair = order[starts[half] + generator.integers(counts[half])]
        correlations.append(spearman(ratings[pair], scores[pair]))
    drawn = 100.0 * np.array(correlations)
    return Correlation(len(queries), len(starts), float(np.mean(drawn)), float(np.std(drawn)))


def spearman(one: Float[np.ndarray, "P"], other: Float[np.ndarray, "P"]) -> float:
    """Return Spearman's rank correlation with mean ranks for equal values; 0 if one side is constant."""
    ranks = [_mean_ranks(values) for values in (one, other)]
    centred = [each - each.mean() for each in ranks]
    size = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum()) / size if size else 0.0


def _mean_ranks(values: Float[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Float[np.ndarray, "P"] = (last - (counts - 1) / 2)[inverse]
    return ranks
