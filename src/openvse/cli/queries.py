"""What a user searches for: sentences, and images by their paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openvse.cli.progress import warn
from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.search import Hit, SearchEngine

_NAME = re.compile(
    r".*\.(avif|bmp|gif|heic|jfif|jp2|jpe?g|pgm|png|ppm|tiff?|webp|avi|flv|m4v|mkv|mov|mp4|mpe?g|webm|wmv)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Query:
    """A sentence, an image, or an item of the index.

    Attributes:
        text: the sentence, the image's path as it was typed, or the item's id.
        image: the image; None for a sentence or an item.
        is_item: whether it is an item of the index.
    """

    text: str
    image: Path | None = None
    is_item: bool = False

    @property
    def kind(self) -> str:
        """``image``, ``item`` or ``text``."""
        return "item" if self.is_item else "text" if self.image is None else "image"

    @property
    def title(self) -> str:
        """What was asked, for people."""
        return self.text if self.kind == "text" else f"images like {self.text}"


@dataclass(frozen=True)
class Refinement:
    """What all queries of a command have in common.

    Attributes:
        image: an image beside every sentence.
        image_weight: its weight.
        avoid: what the hits should not show.
        avoid_weight: how much of its score is subtracted.
        where: conditions on the hits.
        skip: how many of the best hits are left out.
        min_score: the lowest score of a hit.
        min_precision: the lowest probability of a hit.
        expected: how many of the images searched are expected to fit a sentence.
        one_per_file: of the segments of a clip, only the best one is a hit.
    """

    image: Path | None = None
    image_weight: float = 0.5
    avoid: tuple[str, ...] = ()
    avoid_weight: float = 0.5
    where: tuple[str, ...] = ()
    skip: int = 0
    min_score: float | None = None
    min_precision: float | None = None
    expected: float | None = None
    one_per_file: bool = False

    @property
    def is_compound(self) -> bool:
        """Whether a query has several parts."""
        return self.image is not None or bool(self.avoid)

    @property
    def is_plain(self) -> bool:
        """Whether it changes nothing."""
        return self == Refinement(image_weight=self.image_weight, avoid_weight=self.avoid_weight)

    @property
    def nothing(self) -> str:
        """What to say where there is no hit."""
        if self.min_precision is not None:
            return f"no image of probability {self.min_precision:g}"
        reasons = {
            "these conditions": bool(self.where),
            f"a score of {self.min_score} or more": self.min_score is not None,
            f"a rank beyond {self.skip}": self.skip > 0,
        }
        given = " and ".join(reason for reason, is_given in reasons.items() if is_given)
        return f"no hit with {given}" if given else "no hit"

    def page(self, hits: Sequence[Hit], top_k: int) -> list[Hit]:
        """Return the part of all hits that was asked for."""
        some = hits[self.skip : self.skip + top_k]
        return [hit for hit in some if self.min_score is None or hit.score >= self.min_score]


def names_image(word: str) -> bool:
    """Return whether an argument is the path of an image or a clip: by its ending, whether or not it exists."""
    return bool(_NAME.fullmatch(word.strip()))


def image_query(path: str | Path) -> Query:
    """Return an image as a query; raise OpenVSEError where there is no such file."""
    try:
        exists = Path(path).is_file()
    except OSError:  # a name that no file can have
        exists = False
    if not exists:
        raise OpenVSEError(
            f"{path}: this image does not exist: check the path; a sentence must not end like a file name"
        )
    return Query(str(path), Path(path))


def read_queries(words: Sequence[str], images: Sequence[Path] = (), items: Sequence[str] = ()) -> list[Query]:
    """Tell sentences from the paths of images.

    Args:
        words: sentences and paths, as they were typed.
        images: paths that are named as such, whatever their ending.
        items: ids of items of the index.

    Raises:
        OpenVSEError: there is no such image, or nothing is asked.
    """
    queries = [image_query(word) if names_image(word) else Query(word) for word in words]
    queries += [image_query(path) for path in images]
    queries += [Query(item, is_item=True) for item in items]
    if not queries:
        raise OpenVSEError("there is no query: give a sentence, the path of an image, or --image FILE")
    return queries


def answers(
    engine: SearchEngine, queries: Sequence[Query], top_k: int, refined: Refinement | None = None
) -> list[list[Hit]]:
    """Return the best images for every query, in its order; sentences and images are each embedded together.

    An empty sentence has no hits.

    Raises:
        DataError: every query is empty.
    """
    refined = refined or Refinement()
    if not refined.is_plain or any(query.is_item for query in queries):
        return _refined_answers(engine, queries, top_k, refined)
    found: dict[Query, list[Hit]] = {}
    texts = [query for query in queries if query.image is None]
    if len(texts) < len(queries) and not any(query.text.strip() for query in texts):
        found, texts = {query: [] for query in texts}, []
        if found:
            warn("an empty query has no hits")
    found |= zip(texts, engine.search([query.text for query in texts], top_k=top_k), strict=True)
    images = {query: query.image for query in queries if query.image is not None}
    found |= zip(images, engine.search_images([*images.values()], top_k=top_k), strict=True)
    return [found[query] for query in queries]


def _refined_answers(
    engine: SearchEngine, queries: Sequence[Query], top_k: int, refined: Refinement
) -> list[list[Hit]]:
    from openvse import search

    beside = None if refined.image is None else image_query(refined.image).image
    asked = [query for query in queries if query.text.strip()]
    if not asked:
        raise OpenVSEError("all queries are empty: give a sentence that says what the image should show")
    if len(asked) < len(queries):
        warn("an empty query has no hits")
    compound = [
        search.Query(
            text=query.text if query.kind == "text" else "",
            image=beside if query.kind == "text" else query.image,
            like=query.text if query.is_item else None,
            avoid=refined.avoid,
            image_weight=refined.image_weight,
            avoid_weight=refined.avoid_weight,
        )
        for query in asked
    ]
    found = iter(
        engine.find(
            compound,
            top_k,
            skip=refined.skip,
            min_score=refined.min_score,
            where=refined.where,
            min_precision=refined.min_precision,
            expected=refined.expected,
            one_per_file=refined.one_per_file,
        )
    )
    return [next(found) if query.text.strip() else [] for query in queries]


def refuse_image_questions(questions: Sequence[str]) -> None:
    """Raise OpenVSEError for a question that is the path of an image."""
    for question in questions:
        if names_image(question):
            raise OpenVSEError(
                f"{question} is an image, not a question: give one image first, then the questions about it"
            )
