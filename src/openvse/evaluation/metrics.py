"""Metrics from ranks: recall at K, median and mean rank, bootstrap intervals, and their chance level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int, Shaped

from openvse.errors import DataError, RecipeError
from openvse.evaluation.places import NDCG_AT, Places, map_by_chance, ndcg_by_chance, reciprocal_rank_by_chance
from openvse.evaluation.ranking import QueryRanks, Ranks
from openvse.output.documents import CONFIDENCE
from openvse.registry import Registry
from openvse.types import Relevance

SIDES = ("i2t", "t2i")
"""The directions of retrieval: images ask for texts, and texts ask for images."""

RECALL_AT = (1, 5, 10)
"""The usual K of R@K. RSUM is the sum of these recalls over both directions."""

RECALLS = tuple(f"{side}_r{k}" for side in SIDES for k in RECALL_AT)
"""The six recalls that RSUM sums, in the order of tables."""

Metrics: TypeAlias = dict[str, float]
"""``rsum`` in percent, and ``i2t_NAME`` and ``t2i_NAME`` for each name in ``METRICS``: ``r1``, ``r5`` and ``r10`` in
percent, ``medr`` and ``meanr`` in places, ``nmr`` as a share. If the places of all relevant candidates are known, also
``map_at_r``, ``rprecision``, ``ndcg10``, ``p10`` and ``mrr`` in percent."""

Replicates: TypeAlias = dict[str, Float[np.ndarray, "R"]]

Values: TypeAlias = Shaped[np.ndarray, "Q"] | float
"""The value of each query, or one number for all of them."""

Chance: TypeAlias = Callable[[Int[np.ndarray, "Q"], int], Float[np.ndarray, "Q"]]
"""The expected value of each query in a random order: of m relevant candidates, for each query, among n candidates."""

_RESAMPLED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Metric:
    """A metric of retrieval. A report has it for both directions, as ``i2t_NAME`` and ``t2i_NAME``.

    Attributes:
        title: its name in tables.
        of: computes the value of each query, whose mean is the metric and has an interval, or one number without one.
        chance: the level of a random order, if it is known.
        unit: what a mean is multiplied by: 100 makes a share a percentage.
        reads_places: whether ``of`` reads ``QueryRanks.places``, which are counted on request.
        less_is_better: whether it is, as for ranks. Such a metric chooses no model.
        detail: 0 for a metric of every table, 1 for one of tables of all metrics, 2 for one of a model's own report.
    """

    title: str
    of: Callable[[QueryRanks], Values]
    chance: Chance | None = None
    unit: float = 100.0
    reads_places: bool = False
    less_is_better: bool = False
    detail: int = 0

    def __call__(self, direction: QueryRanks) -> Values:
        """Return ``of`` the ranks of a direction."""
        return self.of(direction)


def _recall(k: int) -> Metric:
    """Return R@K, 100 if there are only K candidates. Its level by chance is ``1 - C(N-m, K) / C(N, K)``."""
    return Metric(f"R@{k}", lambda direction: direction.ranks <= k, lambda m, n: 1.0 - _misses(m, n, k))


def _of_places(title: str, of: Callable[[Places], Float[np.ndarray, "Q"]], chance: Chance) -> Metric:
    def read(direction: QueryRanks) -> Values:
        assert direction.places is not None, "they were requested"
        return of(direction.places)

    return Metric(title, read, chance, reads_places=True, detail=1)


def _median(direction: QueryRanks) -> float:
    return float(np.median(direction.ranks))


_rank = partial(Metric, unit=1.0, less_is_better=True)
_OWN = {
    **{f"r{k}": _recall(k) for k in RECALL_AT},
    "medr": _rank("MedR", _median, detail=1),
    # By chance, the mean rank of the best of m.
    "meanr": _rank("MeanR", lambda direction: direction.ranks, lambda m, n: (n + 1) / (m + 1), detail=1),
    "nmr": _rank("nMR", lambda direction: _median(direction) / direction.num_candidates, detail=2),
    "map_at_r": _of_places("mAP@R", Places.map_at_r, map_by_chance),
    "rprecision": _of_places("R-P", Places.rprecision, lambda m, n: m / n),
    f"ndcg{NDCG_AT}": _of_places(f"nDCG@{NDCG_AT}", Places.ndcg, ndcg_by_chance),
    f"p{NDCG_AT}": _of_places(f"P@{NDCG_AT}", Places.precision, lambda m, n: m / n),
    "mrr": _of_places("MRR", Places.reciprocal_rank, reciprocal_rank_by_chance),
}
METRICS: Registry[Values] = Registry("metric", _OWN)
"""The metrics of a direction. ``METRICS.add("r20", Metric("R@20", lambda direction: direction.ranks <= 20))`` adds one.

MedR is the mean of the two middle ranks of an even number of queries. Released code of the field rounds it down
(``floor(median(ranks))``), so its MedR may be half a rank smaller. nMR is MedR divided by the size of the gallery
(PVSE), so that galleries can be compared.
"""


def known_metrics() -> dict[str, Metric]:
    """Return the metrics of a direction by name, the built-in ones first. Raise RecipeError for what is no Metric."""
    known = {}
    for name in dict.fromkeys((*_OWN, *METRICS)):
        metric = METRICS.get(name)
        if not isinstance(metric, Metric):
            raise RecipeError(f"metric {name!r} is {metric!r}: give a Metric with a title and a function")
        known[name] = metric
    return known


def metric_names(detail: int = 0) -> list[str]:
    """Return the metrics of both directions up to a level of detail, RSUM first, and those with more detail last."""
    known = [(name, each) for name, each in known_metrics().items() if each.detail <= detail]
    found = [(each.detail, each.reads_places, side, name) for side in SIDES for name, each in known]
    return ["rsum", *(f"{side}_{name}" for *_, side, name in sorted(found, key=lambda each: each[:3]))]


def metric_of(name: str) -> Metric | None:
    """Return the metric behind a name of one direction, such as ``i2t_r1``, or None behind any other name."""
    side, _, own = name.partition("_")
    return known_metrics().get(own) if side in SIDES else None


def choosing_metrics() -> list[str]:
    """Return the metrics by which a validation can choose a model: of ranks, and with larger values for better ones."""
    known = {name: metric_of(name) for name in metric_names(2)}
    return [name for name, each in known.items() if not (each and (each.reads_places or each.less_is_better))]


def retrieval_metrics(ranks: Ranks) -> Metrics:
    """Return all metrics of both directions and RSUM, the sum of the six recalls.

    Queries without a relevant candidate are left out of every mean.
    """
    known = known_metrics()
    return _with_rsum(
        (f"{side}_{name}", known[name].unit * float(np.mean(values)))
        for side, direction in zip(SIDES, (ranks.i2t, ranks.t2i), strict=True)
        for name, values in _values(direction).items()
    )


def chance_metrics(relevance: Relevance, ranks: Ranks | None = None) -> Metrics:
    """Return the expected metrics of a random order, if they are known.

    Args:
        relevance: the relevant pairs.
        ranks: any ranks of these pairs. If they hold places, the result has the metrics of places, too.
    """
    images, texts = np.unique(np.stack([relevance.images, relevance.texts]), axis=1)
    has_places = ranks is not None and ranks.i2t.places is not None
    asked = ((images, relevance.num_texts), (texts, relevance.num_images))
    counted = [(np.unique(queries, return_counts=True)[1], size) for queries, size in asked]
    return _with_rsum(
        (f"{side}_{name}", metric.unit * float(np.mean(metric.chance(relevant, size))))
        for side, (relevant, size) in zip(SIDES, counted, strict=True)
        for name, metric in known_metrics().items()
        if metric.chance is not None and (has_places or not metric.reads_places)
    )


def bootstrap_replicates(ranks: Ranks, relevance: Relevance, *, resamples: int = 1000, seed: int = 0) -> Replicates:
    """Compute the metrics that have a value for each query, and RSUM, of resampled data sets.

    Images are drawn with replacement, along with their captions, which are not independent evidence. A text that is
    relevant to m images goes with each of them with weight 1/m. Drawing images is the same as weighting them by
    multinomial counts, so every resample is a row of one matrix product. Medians are left out: they change in whole
    ranks, so their percentiles say little.

    Args:
        ranks: the ranks of ``relevance``.
        relevance: which texts belong to which image.
        resamples: the number of resampled data sets.

    Returns:
        The value of each metric on every resample.
    """
    _, unit = np.unique(relevance.images, return_inverse=True)
    share = 1.0 / np.bincount(relevance.texts, minlength=relevance.num_texts)[relevance.texts]
    asked = np.searchsorted(ranks.t2i.queries, relevance.texts)
    names, of_images = _columns(ranks.i2t)
    of_texts = share[:, None] * _columns(ranks.t2i)[1][asked]
    totals = np.column_stack([of_images, *(np.bincount(unit, column) for column in of_texts.T)])
    sums = resampled_sums(totals, resamples, np.random.default_rng(seed))
    known, replicates = known_metrics(), dict[str, Float[np.ndarray, "R"]]()
    for side, half in zip(SIDES, np.split(sums, 2, axis=1), strict=True):
        means = half[:, :-1] / half[:, -1:]
        replicates |= {f"{side}_{name}": known[name].unit * means[:, n] for n, name in enumerate(names)}
    return {**replicates, "rsum": np.sum([replicates[name] for name in RECALLS], axis=0)}


def percentile_intervals(replicates: Sequence[Replicates]) -> dict[str, tuple[float, float]]:
    """Return the percentile interval of each metric, averaged over folds that were resampled separately."""
    tails = 50.0 * (1.0 - CONFIDENCE), 50.0 * (1.0 + CONFIDENCE)
    intervals = {}
    for name, drawn in mean_replicates(replicates).items():
        low, high = np.percentile(drawn, tails)
        intervals[name] = (float(low), float(high))
    return intervals


def mean_replicates(parts: Sequence[Replicates]) -> Replicates:
    """Return the mean of each metric on every resample over folds that were resampled separately."""
    return {name: np.mean([part[name] for part in parts], axis=0) for name in parts[0]}


def mean_metrics(parts: Sequence[Metrics]) -> Metrics:
    """Return the mean of each metric over parts of a data set (folds)."""
    if not parts:
        raise DataError("there is nothing to average: give the metrics of at least one fold")
    return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}


def _with_rsum(named: Iterable[tuple[str, float]]) -> Metrics:
    """Return metrics with RSUM, behind the recalls that it sums."""
    metrics = dict(named)
    recalls = {name: metrics[name] for name in RECALLS}
    return {**recalls, "rsum": sum(recalls.values()), **metrics}


def _values(direction: QueryRanks) -> dict[str, Values]:
    """Return what each metric computes from the ranks of a direction, and from its places if it has them."""
    has_places = direction.places is not None
    known = known_metrics().items()
    return {name: each.of(direction) for name, each in known if has_places or not each.reads_places}


def _columns(direction: QueryRanks) -> tuple[list[str], Float[np.ndarray, "Q C"]]:
    """Return the metrics that have a value for each query, and a row of these values and 1 for each query."""
    columns = {name: values for name, values in _values(direction).items() if isinstance(values, np.ndarray)}
    return [*columns], np.column_stack([*columns.values(), np.ones(len(direction.ranks))]).astype(np.float64)


def resampled_sums(
    totals: Float[np.ndarray, "U C"], resamples: int, generator: np.random.Generator
) -> Float[np.ndarray, "R C"]:
    """Sum the rows drawn for each resample."""
    weights = resampled_weights(len(totals), resamples, generator)
    return np.concatenate([drawn @ totals for drawn in weights])


def resampled_weights(count: int, resamples: int, generator: np.random.Generator) -> Iterator[Float[np.ndarray, "R U"]]:
    """Yield the number of times that each resample draws each of ``count`` units, in blocks of bounded size."""
    step = max(1, _RESAMPLED_AT_ONCE // count)
    probabilities = np.full(count, 1.0 / count)
    for start in range(0, resamples, step):
        yield generator.multinomial(count, probabilities, size=min(step, resamples - start)).astype(np.float64)


def _misses(relevant: Int[np.ndarray, "Q"], candidates: int, k: int) -> Float[np.ndarray, "Q"]:
    """Return the probability that none of the first ``k`` places of a random order is relevant."""
    places = np.arange(min(k, candidates))
    left = np.clip(candidates - relevant[:, None] - places, 0, None)
    missed: Float[np.ndarray, "Q"] = np.prod(left / (candidates - places), axis=1)
    return missed


def grouped_intervals(
    columns: Float[np.ndarray, "Q M"], names: Sequence[str], groups: Int[np.ndarray, "Q"], *, resamples: int, seed: int
) -> dict[str, tuple[float, float]]:
    """Return percentile intervals of the means of columns by name, times 100, or none without resamples.

    Groups are drawn with replacement, with their queries. The group of a query is its image.
    """
    if not resamples:
        return {}
    _, unit = np.unique(groups, return_inverse=True)
    counted = np.column_stack([columns, np.ones(len(columns))])
    totals = np.column_stack([np.bincount(unit, column) for column in counted.T])
    sums = resampled_sums(totals, resamples, np.random.default_rng(seed))
    means = 100.0 * sums[:, :-1] / sums[:, -1:]
    return percentile_intervals([dict(zip(names, means.T, strict=True))])


def pool_of(num_images: int, folds: int) -> tuple[str, str]:
    """Return in words the images from which a query chooses, and the folds that are averaged, or "" for one.

    Examples:
        >>> pool_of(5000, 5), pool_of(60, 7), pool_of(60, 1)
        (('1,000', '5 folds'), ('8 to 9', '7 folds'), ('60', ''))
    """
    pools = dict.fromkeys((f"{num_images // folds:,}", f"{-(-num_images // folds):,}"))
    return " to ".join(pools), f"{folds} folds" if folds > 1 else ""
