"""Two towers on Crisscrossed Captions and ECCV Caption: recall and correlation against judgements of single pairs."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openvse.corpus import Corpus
from openvse.datasets.rows import first_file, reading_json
from openvse.errors import DataError
from openvse.evaluation.embed import Member
from openvse.evaluation.metrics import RECALL_AT, grouped_intervals
from openvse.evaluation.ranking import QueryRanks, rank_by_counting
from openvse.evaluation.report import Judge, metric_title
from openvse.files import read_lines
from openvse.output.documents import Document
from openvse.output.table import Table
from openvse.similarities import Similarity
from openvse.types import EmbeddingSet, Relevance
from openvse_papers.datasets.captioned import KARPATHY, OFFICIAL, official_captions

_NUMBER = re.compile(r"(\d+)\.\w+$")


def image_numbers(corpus: Corpus) -> Int[np.ndarray, "I"]:
    """Return COCO's number of each image, from its file name. Raise DataError if a name has another form."""
    matches = [_NUMBER.search(name) for name in corpus.image_ids]
    for name, match in zip(corpus.image_ids, matches, strict=True):
        if match is None:
            raise DataError(f"{corpus.name}: image {name!r} has no number of COCO in its name: give the data set coco")
    return np.array([int(match[1]) for match in matches if match], dtype=np.int64)


def caption_numbers(root: Path, corpus: Corpus) -> Int[np.ndarray, "T"]:
    """Return COCO's number of each text of a corpus, from the corpus's own file."""
    if (path := first_file(root, KARPATHY)) is None:
        given = (each for part in OFFICIAL for each in official_captions(root, part))
        numbered = {name: _tidy(captions) for name, captions in given}
    else:
        with reading_json(path, "Karpathy's format with numbers of captions") as tree:
            numbered = {
                entry["filename"]: _tidy([(int(each["sentid"]), each["raw"]) for each in entry["sentences"]])
                for entry in tree["images"]
            }
    numbers = np.full(len(corpus.captions), -1, dtype=np.int64)
    place: defaultdict[int, int] = defaultdict(int)
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        known = numbered.get(corpus.image_ids[image], [])
        number, caption = known[place[image]] if place[image] < len(known) else (-1, "")
        place[image] += 1
        if caption != corpus.captions[text]:
            raise DataError(
                f"{root}: caption {place[image]} of {corpus.image_ids[image]} differs from the data set as it was "
                f"opened with: give the folder of COCO as it was published"
            )
        numbers[text] = number
    return numbers


def _tidy(captions: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return captions as a corpus has them: with tidy white space, and without empty ones."""
    return [(number, tidied) for number, caption in captions if (tidied := " ".join(caption.split()))]


# Crisscrossed Captions: people's ratings of pairs of COCO's images and captions (Parekh et al., EACL 2021).

POSITIVE = 3.0
"""The lowest rating, from 0 to 5, of a pair with a caption that counts as positive for retrieval."""

POSITIVE_IMAGES = 2.5
"""The lowest rating of a positive pair of images, in VSE-infinity's released code."""

HEADERS = {
    "sits": ("caption", "image", "agg_score", "sampling_method"),
    "sts": ("caption1", "caption2", "agg_score", "sampling_method"),
    "sis": ("image1", "image2", "agg_score", "sampling_method"),
}
"""The columns of the files of each task: image-text, text-text and image-image."""

_METHODS = {"sits": ("c2i_original", "c2i_intrasim"), "sts": ("c2c_cocaption", "c2c_isim"), "sis": ("i2i_csim",)}
_CAPTION = re.compile(r"sentid:(\d+)$")
_IMAGE = re.compile(r"^COCO_\w+_(\d+)\.jpg$")


@dataclass(frozen=True)
class RatedPairs:
    """Pairs of items, by COCO's numbers, with the mean rating of their annotators, from 0 (unrelated) to 5."""

    first: Int[np.ndarray, "P"]
    second: Int[np.ndarray, "P"]
    ratings: Float[np.ndarray, "P"]


def read_cxc(folder: Path, split: str) -> dict[str, RatedPairs]:
    """Read the ratings of image-text (``sits``), text-text (``sts``) and image-image (``sis``) pairs.

    Format: ``sits_test.csv`` and so on, each with a header and the columns of ``HEADERS``. A caption is
    ``COCO_val2014:sentid:732091``, an image is ``COCO_val2014_000000365325.jpg``.
    """
    if (part := {"test": "test", "validation": "val"}.get(split)) is None:
        raise DataError(f"Crisscrossed Captions has no split {split!r}: give --split test or validation")
    if (file := first_file(folder, [f"sits_{part}.csv", f"data/sits_{part}.csv"])) is None:
        raise DataError(
            f"{folder}: no sits_{part}.csv of Crisscrossed Captions: give the data/ folder of "
            f"github.com/google-research-datasets/Crisscrossed-Captions"
        )
    return {task: _read_ratings(file.with_name(f"{task}_{part}.csv"), task) for task in HEADERS}


def _read_ratings(path: Path, task: str) -> RatedPairs:
    expected = HEADERS[task]
    try:
        lines = csv.reader(f"{line}\n" for line in read_lines(path))
        if (header := tuple(next(lines, ()))) != expected:
            raise DataError(
                f"{path}: its columns are {', '.join(header) or 'missing'}, instead of {', '.join(expected)}: give "
                f"the file with aggregated scores, of the published version"
            )
        rows = [_rating(path, task, number, line) for number, line in enumerate(lines, 2)]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: it cannot be read ({error}): download it again") from error
    if not rows:
        raise DataError(f"{path}: it holds no pairs: download it again")
    first, second, ratings = zip(*rows, strict=True)
    return RatedPairs(np.array(first, dtype=np.int64), np.array(second, dtype=np.int64), np.array(ratings))


def _rating(path: Path, task: str, number: int, line: list[str]) -> tuple[int, int, float]:
    if len(line) == len(HEADERS[task]) and line[3] in _METHODS[task]:
        one, other = (_IMAGE.search(each) or _CAPTION.search(each) for each in line[:2])
        rating = float(line[2]) if re.fullmatch(r"\d+(\.\d+)?", line[2]) else math.nan
        if one and other and 0 <= rating <= 5:
            return int(one[1]), int(other[1]), rating
    raise DataError(f"{path}, line {number}: {','.join(line)!r} is no rated pair: download the published file again")


# ECCV Caption: all captions that fit some of COCO's images, and the reverse (Chun et al., ECCV 2022).

I2T, T2I, ORIGINAL = ("eccv_image_to_caption.json", "eccv_caption_to_image.json", "original_caption_to_image.json")

Positives = Mapping[int, tuple[int, ...]]
"""The positive items of each query, as numbers of COCO."""


@dataclass(frozen=True)
class EccvCaption:
    """The positives of ECCV Caption. ``t2i`` is not the reverse of ``i2t``, because queries were chosen.

    ``captions`` are the gallery, five for each of COCO's 5,000 test images. It is None if the file that lists them is
    missing.
    """

    i2t: Positives
    t2i: Positives
    captions: frozenset[int] | None = None


def read_eccv_caption(folder: Path) -> EccvCaption:
    """Read the JSON files of the package ``eccv_caption``: objects of a query's number and a list of positives."""
    if (i2t := first_file(folder, [I2T, f"data/{I2T}", f"eccv_caption/data/{I2T}"])) is None:
        raise DataError(
            f"{folder}: no {I2T} of ECCV Caption: give the folder eccv_caption/data of the package eccv_caption"
        )
    original = first_file(i2t.parent, [ORIGINAL])
    return EccvCaption(
        _read_positives(i2t),
        _read_positives(i2t.with_name(T2I)),
        frozenset(_read_positives(original)) if original else None,
    )


def _read_positives(path: Path) -> dict[int, tuple[int, ...]]:
    with reading_json(path, "the format of ECCV Caption") as tree:
        positives = {int(query): tuple(dict.fromkeys(map(int, items))) for query, items in tree.items()}
    if not positives or not all(positives.values()):
        raise DataError(f"{path}: a query without a positive item, or no queries: download it again")
    return positives


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
        sections = [f"# {self.protocol} on {self.name}", Table(["", *titles, "queries", "gallery"], rows).to_markdown()]
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


def _measured(ranked: QueryRanks, columns: Mapping[str, np.ndarray], images: Int[np.ndarray, "Q"]) -> Direction:
    """Return the means over the queries, with intervals over the images that queries are or belong to."""
    counted = np.column_stack([*columns.values()]).astype(np.float64)
    metrics = dict(zip(columns, (100.0 * counted.mean(axis=0)).tolist(), strict=True))
    intervals = grouped_intervals(counted, list(columns), images, resamples=BOOTSTRAPS, seed=0)
    return Direction(len(ranked.queries), ranked.num_candidates, metrics, intervals)


def bootstrap_correlation(
    queries: Int[np.ndarray, "P"], ratings: Float[np.ndarray, "P"], scores: Float[np.ndarray, "P"]
) -> Correlation:
    """Return the sampled Spearman correlation of Crisscrossed Captions (Parekh et al., EACL 2021).

    A query has several rated pairs, which are not independent. Therefore each sample draws half of the queries without
    replacement and one pair of each, and computes Spearman's correlation of their ratings and scores. The result is the
    mean over the samples. Equal values have the mean of their ranks.
    """
    order = np.argsort(queries, kind="stable")
    _, starts, counts = np.unique(queries[order], return_index=True, return_counts=True)
    if len(starts) < 4:
        raise DataError(f"{len(starts)} queries have ratings, but a correlation needs at least 4: give more pairs")
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
    centred = []
    for values in (one, other):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
        centred.append(ranks - ranks.mean())
    size = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum()) / size if size else 0.0


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

    def with_texts(self, mask: Bool[np.ndarray, "T"]) -> NumberedItems:
        """Return the items with some of the texts."""
        rows = torch.from_numpy(np.flatnonzero(mask))
        numbers, images = self.text_numbers[mask], self.text_images[mask]
        return replace(self, texts=self.texts[rows], text_numbers=numbers, text_images=images)


def number_items(root: Path, corpus: Corpus, images: EmbeddingSet, texts: EmbeddingSet) -> NumberedItems:
    """Find COCO's numbers of embedded items."""
    pairs = corpus.relevance
    if len(pairs.texts) != pairs.num_texts:
        raise DataError(f"{corpus.name}: a text belongs to several images: open the data set without merging captions")
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
    judge: Callable[..., JudgedReport], root: Path, corpus: Corpus, member: Member, model: str, first: Sequence[str]
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
    numbers = {"image": items.image_numbers, "text": items.text_numbers}
    kinds = {"sits": ("text", "image"), "sts": ("text", "text"), "sis": ("image", "image")}
    ratings = {task: _present(rated[task], numbers[one], numbers[two]) for task, (one, two) in kinds.items()}
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
    items: NumberedItems, ratings: dict[str, RatedPairs], similarity: Similarity, from_images: float, *, strict: bool
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
        distinct = np.unique(pairs[0])
        of_queries = items.text_images[distinct] if name.startswith("text") else distinct
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
            problems.append(f"{name}: {len(missing):,} positive items are not in the gallery and count as not found")
        if lost := len(positives) - len(np.unique(queries)):
            problems.append(f"{name}: {lost:,} of {len(positives):,} queries are not in the data set and are left out")
        ranked = _rank_among(asking[0], asked[0], (queries, relevant), similarity, every=True, swapped=swapped)
        distinct = np.unique(queries)
        of_queries = items.text_images[distinct] if swapped else distinct
        assert ranked.places is not None
        # R counts the missing, too.
        places = ranked.places.with_missing(np.searchsorted(distinct, missing))
        columns = {"map_at_r": places.map_at_r(), "rprecision": places.rprecision()}
        retrieval[name] = _measured(ranked, {**columns, "r1": ranked.ranks <= 1}, of_queries)
    return JudgedReport("ECCV Caption", items.corpus.name, retrieval, {}, model, tuple(problems), tuple(notes))


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
        raise DataError("ECCV Caption names none of the images and captions of this data set: give COCO's test split")
    return one[there], other[there], one[(one >= 0) & (other < 0)]


def _left_out(listed: Int[np.ndarray, "L"], known: Int[np.ndarray, "A"], what: str) -> Iterator[str]:
    if missing := int((~np.isin(listed, known)).sum()):
        yield f"{missing:,} of {len(listed):,} {what} are not in the data set and are left out"
