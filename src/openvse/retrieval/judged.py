"""Two towers on Crisscrossed Captions and ECCV Caption: judgements of single pairs of COCO's images and captions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int

from openvse.corpus import Corpus
from openvse.datasets.coco_judgements import (
    POSITIVE,
    POSITIVE_IMAGES,
    EccvCaption,
    Positives,
    RatedPairs,
    caption_numbers,
    image_numbers,
)
from openvse.errors import DataError
from openvse.evaluation import Member
from openvse.evaluation.judged import (
    BOOTSTRAPS,
    Correlation,
    Direction,
    JudgedReport,
    bootstrap_correlation,
    precisions,
    rank_among,
    recalls,
)
from openvse.similarities import Similarity
from openvse.types import EmbeddingSet

Pairs = tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]
"""Query and candidate of each pair."""


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
        """Return the image of each query: that of a text, or the image itself."""
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
    positives are the rated pairs, which include all pairs of COCO; captions of the same image are positive for each
    other, whatever their rating. The gallery holds the captions and images of the ratings, without the query itself.
    Queries without a positive item are left out.

    ``strict`` is the other reading of Parekh et al. (EACL 2021): 3 for all pairs, and captions of one image that were
    rated lower are not positive.
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
            f"a pair is positive if its rating is at least {POSITIVE:g} of 5 (images: {from_images:g}); captions of "
            f"one image are" + (", unless rated lower" if strict else ", whatever their rating"),
            "queries without a positive item are left out; the query is not a candidate",
            f"Spearman: {BOOTSTRAPS:,} samples of half the queries (the first items), one pair of each; mean ± "
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
        ("image to text", (image, text), rank_among(images, texts, (image, text), similarity)),
        ("text to image", (text, image), rank_among(texts, images, (text, image), similarity, swapped=True)),
        ("text to text", same_texts, rank_among(texts, texts, same_texts, similarity, itself=True)),
        ("image to image", same_images, rank_among(images, images, same_images, similarity, itself=True)),
    ):
        yield name, recalls(ranked, items.images_of(np.unique(pairs[0]), are_texts=name.startswith("text")))


def judge_eccv_caption(
    items: NumberedItems, similarity: Similarity, judged: EccvCaption, *, model: str = ""
) -> JudgedReport:
    """Evaluate on ECCV Caption: mAP@R, R-Precision and R@1 of the queries of its files."""
    problems = [*items.corpus.problems]
    notes = ["queries are those of ECCV Caption; ties are pessimistic", _INTERVALS]
    if judged.captions is None:
        notes.append(
            "the gallery has all captions: original_caption_to_image.json, which lists 25,000, is not there"
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
                f"{name}: {len(missing):,} positive items are not in the gallery; they count as not found"
            )
        lost = len(positives) - len(np.unique(queries))
        if lost:
            problems.append(
                f"{name}: {lost:,} of {len(positives):,} queries are not in the data set and are left out"
            )
        ranked = rank_among(asking[0], asked[0], (queries, relevant), similarity, every=True, swapped=swapped)
        distinct = np.unique(queries)
        of_queries = items.images_of(distinct, are_texts=swapped)
        retrieval[name] = precisions(ranked, np.searchsorted(distinct, missing), of_queries)
    return JudgedReport(
        "ECCV Caption", items.corpus.name, retrieval, {}, model, tuple(problems), tuple(notes)
    )


def _present(rated: RatedPairs, first: Int[np.ndarray, "A"], second: Int[np.ndarray, "B"]) -> RatedPairs:
    """Return rated pairs by the positions of their items, as far as both are there."""
    one, other = _positions(rated.first, first), _positions(rated.second, second)
    there = (one >= 0) & (other >= 0)
    if not there.any():
        raise DataError(
            "the ratings are of none of the images and captions of this data set: give COCO in Karpathy's split, and "
            "the --split of the ratings"
        )
    return RatedPairs(one[there], other[there], rated.ratings[there])


def _positions(numbers: Int[np.ndarray, "P"], known: Int[np.ndarray, "A"]) -> Int[np.ndarray, "P"]:
    """Return the position of each number among the known ones, or -1."""
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known, numbers, sorter=order), len(known) - 1)
    return np.where(known[order[place]] == numbers, order[place], -1)


def _positive(ratings: RatedPairs, rating: float = POSITIVE) -> Pairs:
    chosen = ratings.ratings >= rating
    return ratings.first[chosen], ratings.second[chosen]


def _joined(one: Pairs, other: Pairs) -> Pairs:
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])


def _both_ways(pairs: Pairs) -> Pairs:
    """Return each pair in both orders, once."""
    first, second = _joined(pairs, (pairs[1], pairs[0]))
    distinct = np.unique(np.stack([first, second]), axis=1)
    distinct = distinct[:, distinct[0] != distinct[1]]
    return distinct[0], distinct[1]


def _co_captions(images: Int[np.ndarray, "T"], rated: RatedPairs | None) -> Pairs:
    """Return the pairs of texts of one image, without those that are rated below the threshold."""
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
        scores = Member(*sides, similarity).score_pairs(rows, columns, images.vectors.device).cpu().numpy()
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
    missing = int((~np.isin(listed, known)).sum())
    if missing:
        yield f"{missing:,} of {len(listed):,} {what} are not in the data set and are left out"
