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
    from openvse.search import Hit, HitReranker, SearchEngine

_NAME = re.compile(
    r".*\.(avif|bmp|gif|heic|jfif|jp2|jpe?g|pgm|png|ppm|tiff?|webp|avi|flv|m4v|mkv|mov|mp4|mpe?g|webm|wmv)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Query:
    """A sentence, or an image.

    Attributes:
        text: the sentence, or the image's path as it was typed.
        image: the image; None for a sentence.
    """

    text: str
    image: Path | None = None

    @property
    def kind(self) -> str:
        """``image`` or ``text``."""
        return "text" if self.image is None else "image"

    @property
    def title(self) -> str:
        """What was asked, for people."""
        return self.text if self.image is None else f"images like {self.text}"


@dataclass(frozen=True)
class Wanted:
    """Which hits are wanted.

    Attributes:
        top_k: how many of each query at most.
        min_precision: the lowest probability of a hit; None takes all hits.
        expected: how many images of the index are expected to fit a sentence; None leaves it to the model's curve.
    """

    top_k: int
    min_precision: float | None = None
    expected: float | None = None


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
        raise OpenVSEError(f"{path}: there is no such image: check the path; a sentence has no file's ending")
    return Query(str(path), Path(path))


def read_queries(words: Sequence[str], images: Sequence[Path] = ()) -> list[Query]:
    """Tell sentences from the paths of images.

    Args:
        words: sentences and paths, as they were typed.
        images: paths that are named as such, whatever their ending.

    Raises:
        OpenVSEError: there is no such image, or nothing is asked.
    """
    queries = [image_query(word) if names_image(word) else Query(word) for word in words]
    queries += [image_query(path) for path in images]
    if not queries:
        raise OpenVSEError("nothing is asked: give a sentence, the path of an image, or --image FILE")
    return queries


def find(
    engine: SearchEngine, queries: Sequence[Query], wanted: Wanted, again: HitReranker | None
) -> list[list[Hit]]:
    """Return the hits of every query, ranked again if there is a model for it; warn of a precision out of reach.

    Raises:
        DataError: every query is empty.
        ModelError: a precision is wanted, and the model whose scores rank the hits keeps no curve.
    """
    from openvse.search import at_least, require_curve

    curve, precision = (engine if again is None else again).calibration, wanted.min_precision
    if precision is not None:
        best = require_curve(curve).highest(engine.num_images, wanted.expected)
        if best < precision:
            warn(
                f"precision {precision:g} is out of reach in an index of {engine.num_images:,} images: the best score "
                f"stands for probability {best:.2g}"
            )
    if again is None:
        return answers(engine, queries, wanted)
    first = answers(engine, queries, Wanted(max(wanted.top_k, again.top), expected=wanted.expected))
    ranked = again([query.text for query in queries], first)
    return [at_least(hits[: wanted.top_k], precision) for hits in ranked]


def answers(engine: SearchEngine, queries: Sequence[Query], wanted: Wanted) -> list[list[Hit]]:
    """Return the best images for every query, in its order; sentences and images are each embedded together.

    An empty sentence has no hits.

    Raises:
        DataError: every query is empty.
        ModelError: a precision is wanted, and the model keeps no curve.
    """
    found: dict[Query, list[Hit]] = {}
    texts = [query for query in queries if query.image is None]
    if len(texts) < len(queries) and not any(query.text.strip() for query in texts):
        found, texts = {query: [] for query in texts}, []
        if found:
            warn("an empty query has no hits")
    hits = engine.search(
        [query.text for query in texts],
        top_k=wanted.top_k,
        min_precision=wanted.min_precision,
        expected=wanted.expected,
    )
    found |= zip(texts, hits, strict=True)
    images = {query: query.image for query in queries if query.image is not None}
    found |= zip(images, engine.search_images([*images.values()], top_k=wanted.top_k), strict=True)
    return [found[query] for query in queries]


def refuse_image_questions(questions: Sequence[str]) -> None:
    """Raise OpenVSEError for a question that is the path of an image."""
    for question in questions:
        if names_image(question):
            raise OpenVSEError(
                f"{question} is an image, not a question: give one image first, then the questions about it"
            )
