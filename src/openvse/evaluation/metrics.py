"""Metrics from ranks: recall at K, median and mean rank, bootstrap intervals, and their chance level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import DataError
from openvse.evaluation.places import SEVERAL, Places
from openvse.evaluation.ranking import QueryRanks, Ranks
from openvse.output.documents import CONFIDENCE
from openvse.types import Relevance

RECALL_AT = (1, 5, 10)
"""The usual K of R@K. RSUM is the sum of these recalls over both directions."""

RECALLS = tuple(f"{side}_r{k}" for side in ("i2t", "t2i") for k in RECALL_AT)
"""The six recalls that RSUM sums, in the order of tables."""

Metrics: TypeAlias = dict[str, float]
"""``i2t_r1 ... t2i_r10`` and ``rsum`` in percent, ``*_medr`` and ``*_meanr`` in places, ``*_nmr`` a share. If the
places of all relevant candidates are known, also ``*_map_at_r``, ``*_rprecision``, ``*_ndcg10`` and ``*_mrr`` in
percent."""

Replicates: TypeAlias = dict[str, Float[np.ndarray, "R"]]

_RESAMPLED_AT_ONCE = 1 << 22


def recall_at_k(ranks: Int[np.ndarray, "Q"], k: int) -> float:
    """Return the percentage of queries with a relevant candidate among the first ``k``, 100 if there are only k."""
    return 100.0 * float(np.mean(ranks <= k))


def retrieval_metrics(ranks: Ranks) -> Metrics:
    """Return all metrics of both directions and RSUM, the sum of the six recalls.

    Queries without a relevant candidate are left out of every mean. MedR is the mean of the two middle ranks of an even
    number of queries. Released code of the field rounds it down (``floor(median(ranks))``), so its MedR may be half a
    rank smaller. nMR is MedR divided by the size of the gallery (PVSE), so that galleries can be compared.
    """
    directions = {"i2t": ranks.i2t, "t2i": ranks.t2i}
    metrics = {f"{name}_r{k}": recall_at_k(d.ranks, k) for name, d in directions.items() for k in RECALL_AT}
    metrics["rsum"] = sum(metrics.values())
    for name, direction in directions.items():
        metrics[f"{name}_medr"] = median = float(np.median(direction.ranks))
        metrics[f"{name}_meanr"] = float(np.mean(direction.ranks))
        metrics[f"{name}_nmr"] = median / direction.num_candidates
        if direction.places is not None:
            means = 100.0 * direction.places.columns().mean(axis=0)
            metrics |= {f"{name}_{one}": float(mean) for one, mean in zip(SEVERAL, means, strict=True)}
    return metrics


def chance_metrics(relevance: Relevance, ranks: Ranks | None = None) -> Metrics:
    """Return the expected recalls, RSUM and mean ranks of a random order.

    With m of N candidates relevant, ``P(rank <= K) = 1 - C(N-m, K) / C(N, K)``, which is
    ``1 - prod_{j<K} (N-m-j) / (N-j)``. The mean rank of the best of the m is ``(N+1) / (m+1)``.

    Args:
        relevance: the relevant pairs.
        ranks: any ranks of these pairs. If they hold places, the result has the metrics of places, too.
    """
    images, texts = np.unique(np.stack([relevance.images, relevance.texts]), axis=1)
    sides = {"i2t": (images, relevance.num_texts), "t2i": (texts, relevance.num_images)}
    relevant = {name: np.unique(queries, return_counts=True)[1] for name, (queries, _) in sides.items()}
    metrics = {
        f"{name}_r{k}": 100.0 * float(np.mean(1.0 - _misses(count, sides[name][1], k)))
        for name, count in relevant.items()
        for k in RECALL_AT
    }
    metrics["rsum"] = sum(metrics.values())
    for name, count in relevant.items():
        metrics[f"{name}_meanr"] = float(np.mean((sides[name][1] + 1) / (count + 1)))
    for name, places in _places(ranks).items():
        metrics |= {f"{name}_{one}": value for one, value in places.chance().items()}
    return metrics


def bootstrap_replicates(
    ranks: Ranks, relevance: Relevance, *, resamples: int = 1000, seed: int = 0
) -> Replicates:
    """Compute the recalls, RSUM and mean ranks of resampled data sets.

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
    of_texts = share[:, None] * _columns(ranks.t2i)[asked]
    totals = np.column_stack([_columns(ranks.i2t), *(np.bincount(unit, column) for column in of_texts.T)])
    sums = resampled_sums(totals, resamples, np.random.default_rng(seed))
    width = totals.shape[1] // 2
    replicates: Replicates = {}
    for name, half in (("i2t", sums[:, :width]), ("t2i", sums[:, width:])):
        means = half[:, :-1] / half[:, -1:]
        replicates |= {f"{name}_r{k}": 100.0 * means[:, column] for column, k in enumerate(RECALL_AT)}
        replicates[f"{name}_meanr"] = means[:, len(RECALL_AT)]
        others = means[:, len(RECALL_AT) + 1 :]
        replicates |= {
            f"{name}_{one}": 100.0 * others[:, n] for n, one in enumerate(SEVERAL[: others.shape[1]])
        }
    replicates["rsum"] = np.sum(
        [replicates[f"{name}_r{k}"] for name in ("i2t", "t2i") for k in RECALL_AT], axis=0
    )
    return replicates


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


def _columns(direction: QueryRanks) -> Float[np.ndarray, "Q C"]:
    """Return a row per query: whether it ranks within each K (0 or 1), its rank, its metrics of places, and 1."""
    within = direction.ranks[:, None] <= np.array(RECALL_AT)
    places = [] if direction.places is None else [direction.places.columns()]
    columns = [within, direction.ranks, *places, np.ones(len(direction.ranks))]
    return np.column_stack(columns).astype(np.float64)


def _places(ranks: Ranks | None) -> dict[str, Places]:
    """Return the places of each direction that has them."""
    sides = {} if ranks is None else {"i2t": ranks.i2t.places, "t2i": ranks.t2i.places}
    return {name: places for name, places in sides.items() if places is not None}


def resampled_sums(
    totals: Float[np.ndarray, "U C"], resamples: int, generator: np.random.Generator
) -> Float[np.ndarray, "R C"]:
    """Sum the rows drawn for each resample."""
    weights = resampled_weights(len(totals), resamples, generator)
    return np.concatenate([drawn @ totals for drawn in weights])


def resampled_weights(
    count: int, resamples: int, generator: np.random.Generator
) -> Iterator[Float[np.ndarray, "R U"]]:
    """Yield the number of times that each resample draws each of ``count`` units, in blocks of bounded size."""
    step = max(1, _RESAMPLED_AT_ONCE // count)
    probabilities = np.full(count, 1.0 / count)
    for start in range(0, resamples, step):
        drawn = generator.multinomial(count, probabilities, size=min(step, resamples - start))
        yield drawn.astype(np.float64)


def _misses(relevant: Int[np.ndarray, "Q"], candidates: int, k: int) -> Float[np.ndarray, "Q"]:
    """Return the probability that none of the first ``k`` places of a random order is relevant."""
    places = np.arange(min(k, candidates))
    left = np.clip(candidates - relevant[:, None] - places, 0, None)
    missed: Float[np.ndarray, "Q"] = np.prod(left / (candidates - places), axis=1)
    return missed


def grouped_intervals(
    columns: Float[np.ndarray, "Q M"],
    names: Sequence[str],
    groups: Int[np.ndarray, "Q"],
    *,
    resamples: int,
    seed: int,
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
