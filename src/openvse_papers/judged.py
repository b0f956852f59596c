"""Two towers on Crisscrossed Captions and ECCV Caption: recall and correlation against judgements of single pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openvse.corpus import Corpus
from openvse.errors import DataError
from openvse.evaluation.ensemble import Member
from openvse.evaluation.metrics import RECALL_AT, grouped_intervals
from openvse.evaluation.places import SEVERAL
from openvse.evaluation.protocols import Judge
from openvse.evaluation.ranking import QueryRanks, rank_by_counting
from openvse.evaluation.report import metric_title
from openvse.output.documents import Document
from openvse.output.table import Table
from openvse.similarities import Similarity
from openvse.types import EmbeddingSet, Relevance
from openvse_papers.datasets.coco_judgements import (
    POSITIVE,
    POSITIVE_IMAGES,
    EccvCaption,
    Positives,
    RatedPairs,
    caption_numbers,
    image_numbers,
    read_cxc,
    read_eccv_caption,
)

PairArrays = tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]
"""Query and candidate of each pair."""

BOOTSTRAPS = 1000
"""The number of samples of the correlation with ratings."""

_ITSELF = -1e30


@dataclass(frozen=True)
class Direction:
    """One kind of retrieval: queries with a positive item, candidates of each, metrics in percent, and intervals."""

    queries: int
    gallery: int
    metrics: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation with ratings, times 100: mean and standard deviation over the samples.

    ``queries`` is the number of different first items among the rated pairs.
    """

    pairs: int
    queries: int
    mean: float
    spread: float


@dataclass(frozen=True, repr=False)
class JudgedReport(Document):
    """Retrieval in each direction ("image to text"), and correlations of each kind of pairs ("image-text").

    Both are measured against published judgements.
    """

    protocol: str
    name: str
    retrieval: Mapping[str, Direction]
    correlations: Mapping[str, Correlation]
    model: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def sections(self) -> list[str]:
        names = list(next(iter(self.retrieval.values())).metrics)
        titles = [metric_title(f"i2t_{name}").removeprefix("i2t ") for name in names]
        rows = []
        for side, one in self.retrieval.items():
            figures = [f"{one.metrics[name]:.1f}" for name in names]
            rows.append([side, *figures, f"{one.queries:,}", f"{one.gallery:,}"])
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


def _rank_among(
    queries: EmbeddingSet,
    candidates: EmbeddingSet,
    positives: PairArrays,
    similarity: Similarity,
    *,
    itself: bool = False,
    every: bool = False,
    swapped: bool = False,
) -> QueryRanks:
    """Rank candidates for queries of any modality. Queries without a positive are left out.

    With ``itself``, query n is candidate n, which is then never ahead of a positive. With ``swapped``, the similarity
    has the candidates first (texts as queries for images).
    """
    asking, rows_of_pairs = np.unique(positives[0], return_inverse=True)
    asked = queries[torch.from_numpy(asking)]
    pairs = Relevance(rows_of_pairs, positives[1], len(asking), len(candidates))

    member = Member(*((candidates, asked) if swapped else (asked, candidates)), similarity)

    def score(rows: slice, columns: slice) -> Float[Tensor, "Q C"]:
        scores = member.score(columns, rows).T if swapped else member.score(rows, columns)
        if itself:
            place = asking[rows] - columns.start
            inside = np.flatnonzero((place >= 0) & (place < columns.stop - columns.start))
            scores = scores.clone()
            scores[torch.from_numpy(inside), torch.from_numpy(place[inside])] = _ITSELF
        return scores

    with torch.inference_mode():
        return rank_by_counting(score, pairs, device=member.device, every=every).i2t


def _measured(
    ranked: QueryRanks, columns: Mapping[str, np.ndarray], images: Int[np.ndarray, "Q"]
) -> Direction:
    """Return the means over the queries, with intervals over the images that queries are or belong to."""
    counted = np.column_stack([*columns.values()]).astype(np.float64)
    metrics = dict(zip(columns, (100.0 * counted.mean(axis=0)).tolist(), strict=True))
    intervals = grouped_intervals(counted, list(columns), images, resamples=BOOTSTRAPS, seed=0)
    return Direction(len(ranked.queries), ranked.num_candidates, metrics, intervals)


def bootstrap_correlation(
    queries: Int[np.ndarray, "P"],
    ratings: Float[np.ndarray, "P"],
    scores: Float[np.ndarray, "P"],
) -> Correlation:
    """Return the sampled Spearman correlation of Crisscrossed Captions (Parekh et al., EACL 2021).

    A query has several rated pairs, which are not independent. Therefore each sample draws half of the queries without
    replacement and one pair of each, and computes Spearman's correlation of their ratings and scores. The result is the
    mean over the samples. Equal values have the mean of their ranks.
    """
    order = np.argsort(queries, kind="stable")
    _, starts, counts = np.unique(queries[order], return_index=True, return_counts=True)
    if len(starts) < 4:
        raise DataError(
            f"{len(starts)} queries have ratings, but a correlation needs at least 4: give more pairs"
        )
    generator = np.random.default_rng(0)
    correlations = []
    for _ in range(BOOTSTRAPS):
        half = generator.permutation(len(starts))[: len(starts) // 2]
        pair = order[starts[half] + generator.integers(counts[half])]
        correlations.append(spearman(ratings[pair], scores[pair]))
    drawn = 100.0 * np.array(correlations)
    return Correlation(len(queries), len(starts), float(np.mean(drawn)), float(np.std(drawn)))


def spearman(one: Float[np.ndarray, "P"], other: Float[np.ndarray, "P"]) -> float:
    """Return Spearman's rank correlation with mean ranks for equal values, or 0 if one side is constant."""
    ranks = [_mean_ranks(values) for values in (one, other)]
    centred = [each - each.mean() for each in ranks]
    size = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum()) / size if size else 0.0


def _mean_ranks(values: Float[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Float[np.ndarray, "P"] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


_INTERVALS = f"intervals: bootstrap over the images of the queries, {BOOTSTRAPS:,} resamples, seed 0"


@dataclass(frozen=True)
class NumberedItems:
    """Embedded images and texts with COCO's numbers, and the image of each text."""

    corpus: Corpus
    images: EmbeddingSet
    texts: EmbeddingSet
    image_numbers: Int[np.ndarray, "I"]
    text_numbers: Int[np.ndarray, "T"]
    text_images: Int[np.ndarray, "T"]

    def images_of(self, queries: Int[np.ndarray, "Q"], *, are_texts: bool) -> Int[np.ndarray, "Q"]:
        """Return the image of each query: a text's image, or the image itself."""
        return self.text_images[queries] if are_texts else queries

    def with_texts(self, mask: Bool[np.ndarray, "T"]) -> NumberedItems:
        """Return the items with some of the texts."""
        rows = torch.from_numpy(np.flatnonzero(mask))
        numbers, images = self.text_numbers[mask], self.text_images[mask]
        return replace(self, texts=self.texts[rows], text_numbers=numbers, text_images=images)


def number_items(root: Path, corpus: Corpus, images: EmbeddingSet, texts: EmbeddingSet) -> NumberedItems:
    """Find COCO's numbers of embedded items."""
    pairs = corpus.relevance
    if len(pairs.texts) != pairs.num_texts:
        raise DataError(
            f"{corpus.name}: a text belongs to several images: open the data set without merging captions"
        )
    of_text = np.empty(pairs.num_texts, dtype=np.int64)
    of_text[pairs.texts] = pairs.images
    return NumberedItems(corpus, images, texts, image_numbers(corpus), caption_numbers(root, corpus), of_text)


def cxc(annotations: Path, split: str, *, strict: bool = False) -> Judge:
    """Read the ratings of Crisscrossed Captions, and return their judge."""
    return partial(_judge, partial(judge_cxc, rated=read_cxc(annotations, split), strict=strict))


cxc_strict = partial(cxc, strict=True)


def eccv_caption(annotations: Path, split: str) -> Judge:
    """Read the positives of ECCV Caption, which has only a test split, and return their judge."""
    return partial(_judge, partial(judge_eccv_caption, judged=read_eccv_caption(annotations)))


def _judge(
    judge: Callable[..., JudgedReport],
    root: Path,
    corpus: Corpus,
    member: Member,
    model: str,
    first: Sequence[str],
) -> JudgedReport:
    items = number_items(root, corpus, member.images, member.texts)
    report = judge(items, member.similarity, model=model)
    return replace(report, problems=(*first, *report.problems))


def judge_cxc(
    items: NumberedItems,
    similarity: Similarity,
    rated: Mapping[str, RatedPairs],
    *,
    strict: bool = False,
    model: str = "",
) -> JudgedReport:
    """Evaluate on Crisscrossed Captions, as VSE-infinity's released code does for its Table 5.

    A rated pair with a caption is positive if its rating is at least 3, and a pair of images from 2.5 on. Image-text
    positives are the rated pairs, which include all pairs of COCO. Captions of the same image are positive for each
    other, whatever their rating. The gallery holds the captions and images of the ratings, without the query itself.
    Queries without a positive item are left out.

    ``strict`` is the other reading of Parekh et al. (EACL 2021): 3 for all pairs, and captions of one image with lower
    ratings are not positive.
    """
    listed = np.unique(rated["sits"].first)
    problems = [*_left_out(listed, items.text_numbers, "captions"), *items.corpus.problems]
    items = items.with_texts(np.isin(items.text_numbers, listed))
    sides = {"image": (items.images, items.image_numbers), "text": (items.texts, items.text_numbers)}
    kinds = {"sits": ("text", "image"), "sts": ("text", "text"), "sis": ("image", "image")}
    ratings = {
        task: _present(rated[task], sides[first][1], sides[second][1])
        for task, (first, second) in kinds.items()
    }
    from_images = POSITIVE if strict else POSITIVE_IMAGES
    return JudgedReport(
        protocol="Crisscrossed Captions" + ", the strict reading" * strict,
        name=items.corpus.name,
        retrieval=dict(_directions(items, ratings, similarity, from_images, strict=strict)),
        correlations=dict(_correlations(items, ratings, similarity)),
        model=model,
        problems=tuple(problems),
        notes=(
            f"a pair is positive if its rating is at least {POSITIVE:g} of 5 (images: {from_images:g}). Captions of "
            f"one image are" + (", unless rated lower" if strict else ", whatever their rating"),
            "queries without a positive item are left out. The query is not a candidate",
            f"Spearman: {BOOTSTRAPS:,} samples of half the queries (the first items), one pair of each. Mean ± "
            f"standard deviation",
            "ties are pessimistic",
            _INTERVALS,
        ),
    )


def _directions(
    items: NumberedItems,
    ratings: dict[str, RatedPairs],
    similarity: Similarity,
    from_images: float,
    *,
    strict: bool,
) -> Iterator[tuple[str, Direction]]:
    """Yield each direction of Crisscrossed Captions with its recalls."""
    images, texts = items.images, items.texts
    text, image = _positive(ratings["sits"])
    co_captions = _co_captions(items.text_images, ratings["sts"] if strict else None)
    same_texts = _both_ways(_joined(_positive(ratings["sts"]), co_captions))
    same_images = _both_ways(_positive(ratings["sis"], from_images))
    for name, pairs, ranked in (
        ("image to text", (image, text), _rank_among(images, texts, (image, text), similarity)),
        ("text to image", (text, image), _rank_among(texts, images, (text, image), similarity, swapped=True)),
        ("text to text", same_texts, _rank_among(texts, texts, same_texts, similarity, itself=True)),
        ("image to image", same_images, _rank_among(images, images, same_images, similarity, itself=True)),
    ):
        of_queries = items.images_of(np.unique(pairs[0]), are_texts=name.startswith("text"))
        yield name, _measured(ranked, {f"r{k}": ranked.ranks <= k for k in RECALL_AT}, of_queries)


def judge_eccv_caption(
    items: NumberedItems, similarity: Similarity, judged: EccvCaption, *, model: str = ""
) -> JudgedReport:
    """Evaluate on ECCV Caption: mAP@R, R-Precision and R@1 of the queries of its files."""
    problems = [*items.corpus.problems]
    notes = ["queries come from ECCV Caption. Ties are pessimistic", _INTERVALS]
    if judged.captions is None:
        notes.append(
            "the gallery has all captions, because original_caption_to_image.json, which lists 25,000, is missing"
        )
    else:
        problems += _left_out(np.array(sorted(judged.captions)), items.text_numbers, "captions")
        items = items.with_texts(np.isin(items.text_numbers, list(judged.captions)))
    retrieval: dict[str, Direction] = {}
    images, texts = (items.images, items.image_numbers), (items.texts, items.text_numbers)
    for name, positives, asking, asked, swapped in (
        ("image to text", judged.i2t, images, texts, False),
        ("text to image", judged.t2i, texts, images, True),
    ):
        queries, relevant, missing = _listed(positives, asking[1], asked[1])
        missing = missing[np.isin(missing, queries)]
        if len(missing):
            problems.append(
                f"{name}: {len(missing):,} positive items are not in the gallery and count as not found"
            )
        lost = len(positives) - len(np.unique(queries))
        if lost:
            problems.append(
                f"{name}: {lost:,} of {len(positives):,} queries are not in the data set and are left out"
            )
        ranked = _rank_among(
            asking[0], asked[0], (queries, relevant), similarity, every=True, swapped=swapped
        )
        distinct = np.unique(queries)
        of_queries = items.images_of(distinct, are_texts=swapped)
        assert ranked.places is not None
        # R counts the missing, too.
        places = ranked.places.with_missing(np.searchsorted(distinct, missing)).columns()
        columns = {each: places[:, SEVERAL.index(each)] for each in ("map_at_r", "rprecision")}
        retrieval[name] = _measured(ranked, {**columns, "r1": ranked.ranks <= 1}, of_queries)
    return JudgedReport(
        "ECCV Caption", items.corpus.name, retrieval, {}, model, tuple(problems), tuple(notes)
    )


def _present(rated: RatedPairs, first: Int[np.ndarray, "A"], second: Int[np.ndarray, "B"]) -> RatedPairs:
    """Return rated pairs by the positions of their items, if both items are in the corpus."""
    one, other = _positions(rated.first, first), _positions(rated.second, second)
    there = (one >= 0) & (other >= 0)
    if not there.any():
        raise DataError(
            "the ratings name none of the images and captions of this data set: give COCO in Karpathy's split, and "
            "the --split of the ratings"
        )
    return RatedPairs(one[there], other[there], rated.ratings[there])


def _positions(numbers: Int[np.ndarray, "P"], known: Int[np.ndarray, "A"]) -> Int[np.ndarray, "P"]:
    """Return the position of each number among the known ones, or -1."""
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known, numbers, sorter=order), len(known) - 1)
    return np.where(known[order[place]] == numbers, order[place], -1)


def _positive(ratings: RatedPairs, rating: float = POSITIVE) -> PairArrays:
    chosen = ratings.ratings >= rating
    return ratings.first[chosen], ratings.second[chosen]


def _joined(one: PairArrays, other: PairArrays) -> PairArrays:
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])


def _both_ways(pairs: PairArrays) -> PairArrays:
    """Return each pair in both orders, once."""
    first, second = _joined(pairs, (pairs[1], pairs[0]))
    distinct = np.unique(np.stack([first, second]), axis=1)
    distinct = distinct[:, distinct[0] != distinct[1]]
    return distinct[0], distinct[1]


def _co_captions(images: Int[np.ndarray, "T"], rated: RatedPairs | None) -> PairArrays:
    """Return the pairs of texts of one image, without pairs rated below the threshold."""
    order = np.argsort(images, kind="stable")
    pairs = [
        (order[:-step][same], order[step:][same])
        for step in range(1, int(np.bincount(images).max(initial=1)))
        if (same := images[order[:-step]] == images[order[step:]]).any()
    ]
    if not pairs:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    first, second = (np.concatenate(side) for side in zip(*pairs, strict=True))
    if rated is None:
        return first, second
    low = rated.ratings < POSITIVE
    keys = [
        np.minimum(a, b) * len(images) + np.maximum(a, b)
        for a, b in ((first, second), (rated.first[low], rated.second[low]))
    ]
    others = ~np.isin(keys[0], keys[1])
    return first[others], second[others]


def _correlations(
    items: NumberedItems, ratings: dict[str, RatedPairs], similarity: Similarity
) -> Iterator[tuple[str, Correlation]]:
    text_image, text_text, image_image = ratings["sits"], ratings["sts"], ratings["sis"]
    images, texts = items.images, items.texts
    for name, pairs, sides, listed in (
        ("image-text", text_image, (images, texts), (text_image.second, text_image.first)),
        ("text-text", text_text, (texts, texts), (text_text.first, text_text.second)),
        ("image-image", image_image, (images, images), (image_image.first, image_image.second)),
    ):
        rows, columns = map(torch.from_numpy, listed)
        scores = Member(*sides, similarity).score_pairs(rows, columns).cpu().numpy()
        yield name, bootstrap_correlation(pairs.first, pairs.ratings, scores.astype(np.float64))


def _listed(
    positives: Positives, asking: Int[np.ndarray, "Q"], asked: Int[np.ndarray, "C"]
) -> tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P"], Int[np.ndarray, "M"]]:
    """Return the positions of all positive pairs, and the query of each whose item is not in the gallery."""
    queries = np.repeat(np.array(list(positives)), [len(items) for items in positives.values()])
    items = np.array([item for each in positives.values() for item in each], dtype=np.int64)
    one, other = _positions(queries, asking), _positions(items, asked)
    there = (one >= 0) & (other >= 0)
    if not there.any():
        raise DataError(
            "ECCV Caption names none of the images and captions of this data set: give COCO's test split"
        )
    return one[there], other[there], one[(one >= 0) & (other < 0)]


def _left_out(listed: Int[np.ndarray, "L"], known: Int[np.ndarray, "A"], what: str) -> Iterator[str]:
    if missing := int((~np.isin(listed, known)).sum()):
        yield f"{missing:,} of {len(listed):,} {what} are not in the data set and are left out"
