"""The result of an evaluation, with all that is needed to interpret it, and the way from embeddings to it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.corpus import Corpus
from openvse.corpus.corpus import SharedTexts, merge_identical
from openvse.errors import DataError, check_number, choices, nearest
from openvse.evaluation.embed import HubsOut, Member, Penalties, Scorer, bank_penalties, mean_scores
from openvse.evaluation.metrics import (
    SIDES,
    Metrics,
    Replicates,
    bootstrap_replicates,
    chance_metrics,
    mean_metrics,
    mean_replicates,
    metric_names,
    metric_of,
    percentile_intervals,
    pool_of,
    retrieval_metrics,
)
from openvse.evaluation.ranking import ALONE, Processes, QueryRanks, Ranks, SeeBlock, rank_by_counting
from openvse.evaluation.reliability import Reliability
from openvse.evaluation.rerank import Best, Proposals, Reranker, rerank
from openvse.media.listing import ImageFile
from openvse.output.documents import CONFIDENCE, Document
from openvse.output.table import Table, data_frame
from openvse.registry import Registry, installed, load_part
from openvse.scoring.hubs import QueryBank
from openvse.specs.load import parse_yaml
from openvse.types import EmbeddingSet, OnProgress, Relevance


@dataclass(frozen=True)
class TestProtocol:
    """A protocol under which figures are published.

    ``items`` is 0 where the number of images, clips or questions is not fixed. The metrics of the ``folds``, runs of
    consecutive images, are averaged. With ``every``, all relevant items are placed (mAP@R and the like). ``pool``
    selects the sentences: all, the first five of each image, the last of each clip, or all, equal ones ``merged``.
    """

    __test__ = False  # pytest takes the name for a test

    name: str
    data: str
    title: str
    items: int
    texts: int = 0
    split: str = "test"
    folds: int = 1
    task: str = "retrieval"
    annotations: str = ""
    every: bool = False
    pool: Literal["all", "first_five", "last", "merged"] = "all"
    code: str = ""

    def pooled(self, corpus: Corpus) -> Corpus:
        """Return a corpus with the sentences that count, or the corpus itself if these are all of its texts."""
        if self.pool == "all":
            return corpus
        if self.pool == "merged":
            return merge_identical(corpus, key=str)
        images, most, step = corpus.relevance.images, *((5, 1) if self.pool == "first_five" else (1, -1))
        seen = Counter[int]()
        pooled = np.zeros(len(images), dtype=bool)
        for place in range(len(images))[::step]:
            pooled[place] = seen[images[place]] < most
            seen[images[place]] += 1
        return corpus if pooled.all() else corpus.with_pairs(pooled)

    def fits(self, corpus: Corpus) -> bool:
        """Return whether a part of a data set has the protocol's items, and only sentences that count."""
        return len(corpus) == self.items and self.pooled(corpus) is corpus

    def mismatch(self, items: int, texts: int) -> str:
        """Return a line if the number of evaluated items differs from the protocol's, or ""."""
        if self.items in (0, items) and self.texts in (0, texts):
            return ""
        wanted = " and ".join(f"{count:,}" for count in (self.items, self.texts) if count)
        size = " and ".join(f"{count:,}" for count, want in ((items, self.items), (texts, self.texts)) if want)
        return f"protocol {self.name} has {wanted} items, and {size} are evaluated: the figures are not of it"


Judge: TypeAlias = Callable[[Path, Corpus, Member, str, Sequence[str]], "Document"]
"""A function that measures embedded items against judgements of single pairs.

Its arguments are the folder of the data, the items, their embeddings, the fingerprint of the model, and lines that the
report says first.
"""

JUDGES: Registry[Judge] = Registry("judge", {})
"""For each protocol with ``annotations``, what reads them, from a folder and the name of a split."""


@cache
def protocols() -> Mapping[str, TestProtocol]:
    """Return all protocols by name. An installed package adds a mapping of some as ``protocols.NAME``."""
    return {
        name: each
        for entry in installed("protocols").values()
        for name, each in dict[str, TestProtocol](load_part(entry)).items()
    }


def read_protocols(text: str) -> dict[str, TestProtocol]:
    """Return the protocols of a text in YAML, with the fields of each by its name."""
    return {name: TestProtocol(name, **keys) for name, keys in parse_yaml(text).items()}


def protocols_of(corpus: Corpus) -> tuple[str, ...]:
    """Return the names of the protocols that a part of a data set fits."""
    return tuple(name for name, protocol in protocols().items() if protocol.fits(corpus))


def protocol_named(name: str) -> TestProtocol:
    """Return a protocol. Raise DataError, with the nearest name, if no protocol has this name."""
    known = [*protocols()]
    if name not in known:
        raise DataError(f"unknown protocol {name!r}{nearest(name, known)}{choices(known, 'openvse list protocols')}")
    return protocols()[name]


@dataclass(frozen=True)
class Shown:
    """A query, an answer or a result, as a page shows it: a text, an image, or both."""

    text: str = ""
    image: ImageFile | None = None


@dataclass(frozen=True)
class AnsweredQuery:
    """One query with the results of one model, or of each of two models.

    Attributes:
        answers: the first results of the model, best first, or the first result of each model.
        results: the quality of each model's answer, such as "right at 12".
        right: a right answer. A report on one model leaves it out if it is among the results.
    """

    query: Shown
    answers: tuple[Shown, ...]
    hits: tuple[bool, ...]
    results: tuple[str, ...]
    right: Shown | None


@dataclass(frozen=True)
class AnsweredQueries:
    """Queries of one direction at both ends of a list, each end from its extreme.

    A model answers them best and worst, or the second model gains and loses most on them.
    """

    title: str
    best: tuple[AnsweredQuery, ...]
    worst: tuple[AnsweredQuery, ...]


def largest_changes(gains: Float[np.ndarray, "Q"], count: int) -> tuple[Int[np.ndarray, "B"], Int[np.ndarray, "W"]]:
    """Return the positions of the largest gains and of the largest losses, at most ``count`` each, without zeros."""
    order = np.argsort(-gains, kind="stable")
    better, worse = order[gains[order] > 0], order[gains[order] < 0][::-1]
    return better[:count], worse[:count]


def one_per_image(numbers: Iterable[int], images: Sequence[int], count: int) -> Iterator[int]:
    """Yield queries in their order, at most one for each image, so that its sentences do not fill a list."""
    seen: set[int] = set()
    for number in numbers:
        if images[number] not in seen and len(seen) < count:
            seen.add(images[number])
            yield number


@dataclass(frozen=True)
class Findings:
    """The result of an evaluation in the form that a report shows.

    ``beside`` has figures to compare with (published ones, chance, baselines), ``notes`` the conditions, ``problems``
    omitted items and leakage, and ``digest`` distinguishes other data of the same name.
    """

    data: str
    size: Mapping[str, int]
    metrics: Metrics
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    beside: Mapping[str, Metrics] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    reliability: Reliability | None = None
    queries: tuple[AnsweredQueries, ...] = ()
    digest: str = ""


@dataclass(frozen=True)
class Protocol:
    """The conditions of an evaluation, in which every image and every sentence is a query and a candidate.

    ``folds`` parts were evaluated separately and averaged (COCO 1K: 5). Without ``resamples`` there are no intervals.
    """

    name: str
    num_images: int
    num_texts: int
    folds: int
    block_size: int
    seed: int
    resamples: int
    ties: str = "pessimistic"
    num_models: int = 1


@dataclass(frozen=True)
class Remarks:
    """Numbers of queries whose best relevant candidate ties with an irrelevant one, or that have no relevant candidate.

    Ranks do not show them. ``shared`` are texts that are relevant to several images.
    """

    tied_i2t: int
    tied_t2i: int
    excluded_i2t: int
    excluded_t2i: int
    shared: SharedTexts = field(default_factory=lambda: SharedTexts(0, 0))


@dataclass(frozen=True)
class Reranked:
    """How another model reranked the ``top`` proposals of each query, in so many seconds over both directions.

    Its score has the weight w, and the score of the proposing model 1 - w.
    """

    top: int
    weight: float
    seconds: float


@dataclass(frozen=True)
class QueryOutcomes:
    """The results of each query of one direction, best first, as positions in the whole data set.

    Queries without a relevant candidate are left out. A rank is the rank of the best relevant candidate.
    """

    queries: Int[np.ndarray, "Q"]
    ranks: Int[np.ndarray, "Q"]
    hits: Int[np.ndarray, "Q top"]
    scores: Float[np.ndarray, "Q top"]


@dataclass(frozen=True)
class Outcomes:
    """The results of each query, in both directions."""

    i2t: QueryOutcomes
    t2i: QueryOutcomes


@dataclass(frozen=True, repr=False)
class Report(Document):
    """Metrics with their protocol, intervals and chance level, and published results for comparison.

    Attributes:
        protocol: the conditions of the evaluation.
        remarks: ties and queries left out.
        intervals: the lower and upper bound of each metric that has an interval.
        chance: the expected metrics of a random order of the same data.
        model: the fingerprint of the model, or of each model that was averaged, or empty.
        published: the published results of each label (paper and setting), under the same names as ``metrics``.
        problems: the skipped items, one line each.
        reranked: the reranking of the first proposals, if any.
        hubs_out: the metrics with hubs taken out, if there is a query bank.
        reliability: the reliability of the model's probabilities, if it has any.
        replicates: the metrics on every resample of the bootstrap, averaged over the folds. The same data and seed give
            the same resamples, so the replicates of two models can be compared in pairs. They are not written.
        outcomes: the rank and the first candidates of each query, if requested. They are not written.
    """

    metrics: Metrics
    protocol: Protocol
    remarks: Remarks
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    chance: Metrics = field(default_factory=dict)
    model: str = ""
    published: Mapping[str, Metrics] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    reranked: Reranked | None = None
    hubs_out: HubsOut | None = None
    reliability: Reliability | None = None
    replicates: Replicates = field(default_factory=dict, repr=False, compare=False)
    outcomes: Outcomes | None = field(default=None, repr=False, compare=False)

    def sections(self) -> list[str]:
        rsum, *recalls = (name for name in metric_names() if name in self.metrics)
        return [
            f"# Retrieval{f' on {self.protocol.name}' if self.protocol.name else ''}",
            self.sentence(),
            measured_table("", [*recalls, rsum], self.metrics, self.intervals, self.beside()).to_markdown(),
            Table(["", "MedR", "MeanR", "MeanR by chance", "nMR"], [*self._rank_rows()]).to_markdown(),
            *self._several(),
            "\n".join(f"- {line}" for line in self.protocol_lines()),
            self.reliability.to_markdown() if self.reliability else "",
        ]

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each metric. Raise OpenVSEError without pandas."""
        rows = []
        for name, value in self.metrics.items():
            low, high = self.intervals.get(name, (None, None))
            chance = self.chance.get(name)
            rows.append({"metric": name, "value": value, "low": low, "high": high, "chance": chance})
        return data_frame(rows)

    def sentence(self) -> str:
        """Return the report in words."""
        first, ten = (f"{self.metrics[name]:.0f}" for name in ("t2i_r1", "t2i_r10"))
        chance = [f"{self.chance.get(name, 0):.0f}" for name in ("t2i_r1", "t2i_r10")]
        by_chance = f" (by chance {' and '.join(chance)})" if self.chance else ""
        pool, folds = pool_of(self.protocol.num_images, self.protocol.folds)
        mean = f" (mean of {folds})" if folds else ""
        return (
            f"Of {pool} images{mean}, the right one comes first for {first} of 100 sentences, and is among the first "
            f"ten for {ten}{by_chance}. RSUM depends on the number of images: compare it only with that of as many."
        )

    def beside(self) -> dict[str, Metrics]:
        """Return the metrics to compare with, by label: published results, and chance."""
        again = {} if self.hubs_out is None else {"hubs out": self.hubs_out.metrics}
        return {**again, **self.published, **({"chance": self.chance} if self.chance else {})}

    def _rank_rows(self) -> Iterator[list[str]]:
        for side, title in zip(SIDES, ("image to text", "text to image"), strict=True):
            medr, meanr, nmr = (self.metrics[f"{side}_{name}"] for name in ("medr", "meanr", "nmr"))
            chance = f"{self.chance[f'{side}_meanr']:.1f}" if self.chance else ""
            yield [title, f"{medr:g}", f"{meanr:.1f}", chance, f"{nmr:.4f}"]

    def _several(self) -> Iterator[str]:
        """Yield the table of the metrics of all relevant candidates, if there are any, and of others in no table."""
        shown = {*metric_names(), *(f"{side}_{name}" for side in SIDES for name in ("medr", "meanr", "nmr"))}
        if names := [name for name in metric_names(2) if name in self.metrics and name not in shown]:
            beside = {"chance": self.chance}
            yield measured_table("all relevant items", names, self.metrics, self.intervals, beside).to_markdown()

    def protocol_lines(self) -> Iterator[str]:
        """Yield the conditions of the evaluation, a line at a time."""
        protocol, remarks = self.protocol, self.remarks
        pool, folds = pool_of(protocol.num_images, protocol.folds)
        mean = f", mean of {folds} of {pool} images" if folds else ""
        yield f"{protocol.num_images:,} images, {protocol.num_texts:,} texts{mean}"
        yield f"ties are {protocol.ties}: {remarks.tied_i2t:,} images and {remarks.tied_t2i:,} texts have one"
        if remarks.excluded_i2t or remarks.excluded_t2i:
            yield f"without a relevant partner: {remarks.excluded_i2t:,} images and {remarks.excluded_t2i:,} texts"
        if remarks.shared.num_texts:
            yield remarks.shared.describe()
        if protocol.resamples:
            yield f"intervals: bootstrap over images, {protocol.resamples:,} resamples, seed {protocol.seed}"
        if protocol.num_models > 1:
            yield f"mean of the scores of {protocol.num_models} models"
        if self.reranked:
            again, queries = self.reranked, protocol.num_images + protocol.num_texts
            mixed = "" if again.weight == 1 else f", weight {again.weight:g}"
            yield (
                f"the first {again.top} of each query ranked again by the last model{mixed}: "
                f"{1000 * again.seconds / queries:.1f} ms a query"
            )
        if self.hubs_out:
            bank = self.hubs_out
            yield f"hubs out: query bank {bank.bank} ({bank.num_images:,} images, {bank.num_texts:,} texts)"
        if self.model:
            yield f"model {self.model}"


def measured_table(
    title: str,
    names: Sequence[str],
    metrics: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    beside: Mapping[str, Mapping[str, float]],
    *,
    model: str = "this model",
) -> Table:
    """Return a table of some metrics, their intervals, and below a line the metrics to compare with, by label."""
    rows = [[model, *metric_cells(metrics, names)]]
    if intervals:
        rows.append([f"{CONFIDENCE:.0%} interval", *interval_cells(intervals, names)])
    count = len(rows)
    rows += [[label, *metric_cells(figures, names)] for label, figures in beside.items()]
    return Table(
        [title, *map(metric_title, names)],
        rows,
        strong=frozenset({0}),
        small=frozenset(range(1, count)),
        ruled=frozenset({count} if beside else ()),
    )


def metric_cells(metrics: Mapping[str, float], names: Sequence[str]) -> tuple[str, ...]:
    """Return the table cells of some metrics, empty where there is none."""
    return tuple(f"{metrics[name]:.1f}" if name in metrics else "" for name in names)


def interval_cells(intervals: Mapping[str, tuple[float, float]], names: Sequence[str]) -> tuple[str, ...]:
    """Return the table cells of the intervals of some metrics, empty where there is none."""
    bounds = (intervals.get(name) for name in names)
    return tuple("{:.1f} to {:.1f}".format(*each) if each else "" for each in bounds)


def metric_title(metric: str) -> str:
    """Return the name of a metric in tables, such as "i2t R@1" for ``i2t_r1`` and "WUPS@0.9" for ``wups_0.9``."""
    if metric == "rsum":
        return "RSUM"
    if (known := metric_of(metric)) is not None:
        return f"{metric[:3]} {known.title}"
    return metric.replace("wups_", "WUPS@").removeprefix("accuracy_").replace("_", " ")


RowsT = TypeVar("RowsT", QueryRanks, QueryOutcomes)


@dataclass(frozen=True)
class Fold:
    """A part of a data set that is evaluated separately, with the positions of its items in the whole data set."""

    members: Sequence[Member]
    relevance: Relevance
    reranker: Reranker | None
    images: Int[np.ndarray, "I"]
    texts: Int[np.ndarray, "T"]


@dataclass(frozen=True)
class RankedFold:
    """The ranks of a part, the seconds of reranking, and the results of each query if requested."""

    ranks: Ranks
    seconds: float = 0.0
    outcomes: Outcomes | None = None


def cut_into_folds(
    members: Sequence[Member], relevance: Relevance, reranker: Reranker | None, folds: int
) -> Iterator[Fold]:
    """Yield the whole data, or each run of consecutive images with its relevant texts."""
    for member in (*members, *([reranker.member] if reranker else [])):
        if (len(member.images), len(member.texts)) != relevance.shape:
            raise DataError(
                f"{len(member.images)} images and {len(member.texts)} texts are embedded, but the relevance has "
                f"{relevance.num_images} and {relevance.num_texts}: embed the same items"
            )
    check_number("folds", folds, 1, relevance.num_images, whole=True)  # one image each, at least
    every_image, every_text = np.arange(relevance.num_images), np.arange(relevance.num_texts)
    if folds == 1:
        yield Fold(members, relevance, reranker, every_image, every_text)
        return
    cuts = np.arange(folds + 1) * relevance.num_images // folds
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        inside = (relevance.images >= start) & (relevance.images < stop)
        texts, renumbered = np.unique(relevance.texts[inside], return_inverse=True)
        own = Relevance(relevance.images[inside] - start, renumbered, stop - start, len(texts))
        chosen = slice(start, stop), torch.from_numpy(texts)
        again = reranker and reranker.part(*chosen)
        yield Fold([member.part(*chosen) for member in members], own, again, every_image[start:stop], texts)


@torch.inference_mode()
def rank_fold(
    part: Fold,
    block_size: int,
    *,
    processes: Processes = ALONE,
    every: bool = False,
    keep: int = 0,
    less: Penalties | None = None,
    also: SeeBlock | None = None,
    progress: OnProgress | None = None,
) -> RankedFold:
    """Rank one part, a block of scores at a time, after subtracting ``less``. ``also`` gets each block."""
    relevance, again = part.relevance, part.reranker
    if again is not None and every:
        raise DataError("reranking places only the best relevant candidate: leave out mAP@R and the like")
    shape, top, device = relevance.shape, again.top if again else keep, part.members[0].device
    proposals = Proposals(*shape, top, device) if top else None
    scored = 0

    def see(rows: slice, columns: slice, scores: Float[Tensor, "I T"]) -> None:
        nonlocal scored
        if proposals is not None:
            proposals.see(rows, columns, scores)
        if also is not None:
            also(rows, columns, scores)
        scored += scores.numel()
        if progress is not None:
            progress("scoring pairs", scored, math.prod(shape))

    ranks = rank_by_counting(
        partial(_scores, part.members, less),
        relevance,
        block_size=block_size,
        device=device,
        see=see,
        every=every,
        processes=processes,
    )
    if proposals is None:
        return RankedFold(ranks)
    if again is None:
        return RankedFold(ranks, outcomes=_outcomes(part, ranks, proposals, keep))
    ranks, seconds = rerank(ranks, proposals, again, relevance, progress)
    return RankedFold(ranks, seconds, _outcomes(part, ranks, proposals, keep) if keep else None)


def _scores(members: Sequence[Member], less: Penalties | None, rows: slice, columns: slice) -> Float[Tensor, "I T"]:
    scores = mean_scores(members, rows, columns)
    if less is None:
        return scores
    # Among the candidates of one query its own share is the same number, so one block serves both directions.
    parts = zip(less, (rows, columns), strict=True)
    images, texts = (torch.from_numpy(each[some]).to(scores) for each, some in parts)
    return scores - images.unsqueeze(1) - texts


def _outcomes(part: Fold, ranks: Ranks, proposals: Proposals, keep: int) -> Outcomes:
    def one(ranked: QueryRanks, best: Best, queries: np.ndarray, candidates: np.ndarray) -> QueryOutcomes:
        first = best.positions[:, :keep], best.scores[:, :keep]
        hits, scores = (each.cpu().numpy()[ranked.queries] for each in first)
        return QueryOutcomes(queries[ranked.queries], ranked.ranks, candidates[hits], scores)

    return Outcomes(
        one(ranks.i2t, proposals.i2t, part.images, part.texts), one(ranks.t2i, proposals.t2i, part.texts, part.images)
    )


def _joined(parts: Sequence[QueryOutcomes]) -> QueryOutcomes:
    width = min(part.hits.shape[1] for part in parts)
    columns = ((each.queries, each.ranks, each.hits[:, :width], each.scores[:, :width]) for each in parts)
    joined = [*map(np.concatenate, zip(*columns, strict=True))]
    order = np.argsort(joined[0], kind="stable")
    return QueryOutcomes(*(column[order] for column in joined))


_PRODUCTS_IN_BLOCK = 1 << 18  # 1024 a side would not be faster than 512 and would take twice the memory
_PRODUCTS_ON_A_GPU = 1 << 22  # which computes 512 a side faster than it is told to


def evaluate_sets(
    images: EmbeddingSet,
    texts: EmbeddingSet,
    relevance: Relevance,
    similarity: Scorer,
    *,
    others: Sequence[Member] = (),
    reranker: Reranker | None = None,
    bank: QueryBank | None = None,
    name: str = "",
    model: str = "",
    folds: int = 1,
    resamples: int = 1000,
    seed: int = 0,
    block_size: int | None = None,
    see: SeeBlock | None = None,
    every: bool = False,
    keep: int = 0,
    processes: Processes = ALONE,
    progress: OnProgress | None = None,
) -> Report:
    """Rank the texts of every image and the images of every text, and return a report.

    The device of the similarity computes and counts the scores.

    Args:
        images: embeddings of the images, in the order of ``relevance``.
        texts: embeddings of the texts, in the order of ``relevance``.
        relevance: which images and texts belong together.
        similarity: the function that scores a block of images against a block of texts.
        others: other models' embeddings of the same items. The scores of all models are averaged.
        reranker: a model that reranks the first proposals of each query.
        bank: images and texts that show which items are hubs, to take the hubs out.
        name: the data set and split, for the report.
        model: the fingerprint of the model, for the report.
        folds: the number of runs of consecutive images to evaluate separately and average (COCO: 5).
        resamples: the number of bootstrap resamples. 0 leaves the intervals out.
        block_size: the side of a block of scores. Default: at most 2^18 pairs of embeddings in a block, on a GPU 2^22.
        see: a function to call once with every block of scores, of each fold for itself.
        every: whether to place all relevant candidates, for mAP@R, R-Precision, nDCG@10 and MRR (see ``Places``).
        keep: the number of first candidates of each query to keep in ``Report.outcomes``.
        processes: the processes that share the scoring. All of them return the report.
        progress: a function to call after every block of scores.

    Raises:
        DataError: embeddings and relevance disagree, nothing is relevant, there are too many folds, or two of
            ``every``, a bank and a reranker are present.
        ModelError: a score is NaN or infinite, or the re-ranking model cannot score listed pairs.
    """
    members = [Member(images, texts, similarity), *others]
    size = block_size or _block_size(members)
    protocol = Protocol(name, *relevance.shape, folds, size, seed, resamples, num_models=len(members))
    parts = list(cut_into_folds(members, relevance, reranker, folds))
    if bank is not None and (reranker is not None or every or others):
        raise DataError("a query bank belongs to one model: leave out others, reranking, mAP@R and the like")
    rank = partial(rank_fold, block_size=size, processes=processes, progress=progress)
    rank = partial(rank, every=every, keep=keep, also=see)
    less = [None if bank is None else bank_penalties(part.members[0], bank) for part in parts]
    ranked = [rank(part, less=each) for part, each in zip(parts, less, strict=True)]
    return replace(_report(parts, ranked, protocol, _remarks(ranked, relevance)), model=model)


def _block_size(members: Sequence[Member]) -> int:
    """Return the side of a block. Embedding sets have K x K comparisons of two items, and get smaller blocks."""
    most = _PRODUCTS_IN_BLOCK if members[0].device.type == "cpu" else _PRODUCTS_ON_A_GPU
    return max(16, math.isqrt(most // max(1, *(member.products for member in members))))


def _report(parts: Sequence[Fold], ranked: Sequence[RankedFold], protocol: Protocol, remarks: Remarks) -> Report:
    """Compute the metrics of all parts, and their intervals and remarks."""
    ranks, outcomes = [each.ranks for each in ranked], [each.outcomes for each in ranked if each.outcomes]
    drawn, again = _replicates(ranks, parts, protocol.resamples, protocol.seed), parts[0].reranker
    return Report(
        metrics=mean_metrics([retrieval_metrics(part_ranks) for part_ranks in ranks]),
        protocol=protocol,
        remarks=remarks,
        reranked=None if again is None else Reranked(again.top, again.weight, sum(each.seconds for each in ranked)),
        intervals=percentile_intervals([drawn]) if drawn else {},
        chance=mean_metrics([chance_metrics(p.relevance, r) for p, r in zip(parts, ranks, strict=True)]),
        replicates=drawn,
        outcomes=Outcomes(_joined([o.i2t for o in outcomes]), _joined([o.t2i for o in outcomes])) if outcomes else None,
    )


def _replicates(ranks: Sequence[Ranks], parts: Sequence[Fold], resamples: int, seed: int) -> Replicates:
    """Resample the images of each part separately, and return the means over the parts."""
    if not resamples:
        return {}
    drawn = [
        bootstrap_replicates(ranked, part.relevance, resamples=resamples, seed=seed + number)
        for number, (ranked, part) in enumerate(zip(ranks, parts, strict=True))
    ]
    return mean_replicates(drawn)


def _remarks(parts: Sequence[RankedFold], relevance: Relevance) -> Remarks:
    return Remarks(
        tied_i2t=sum(part.ranks.i2t.num_tied for part in parts),
        tied_t2i=sum(part.ranks.t2i.num_tied for part in parts),
        excluded_i2t=relevance.num_images - len(np.unique(relevance.images)),
        excluded_t2i=relevance.num_texts - len(np.unique(relevance.texts)),
        shared=SharedTexts.of(relevance),
    )
