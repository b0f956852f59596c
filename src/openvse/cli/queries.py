"""The queries of a search: sentences, and paths of images."""

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
    """A sentence, or an image.

    Attributes:
        text: the sentence, or the path of the image as the user typed it.
        image: the path of the image; None for a sentence.
    """

    text: str
    image: Path | None = None

    @property
    def kind(self) -> str:
        """The kind of the query: ``image`` or ``text``."""
        return "text" if self.image is None else "image"

    @property
    def title(self) -> str:
        """The query as a heading."""
        return self.text if self.image is None else f"images like {self.text}"


def names_image(word: str) -> bool:
    """Return whether an argument ends like the path of an image or a clip; the file need not exist."""
    return bool(_NAME.fullmatch(word.strip()))


def image_query(path: str | Path) -> Query:
    """Return an image as a query; raise OpenVSEError if the file does not exist."""
    try:
        exists = Path(path).is_file()
    except OSError:  # a name that no file can have
        exists = False
    if not exists:
        raise OpenVSEError(
            f"{path}: this image does not exist: check the path; a sentence must not end like a file name"
        )
    return Query(str(path), Path(path))


def read_queries(words: Sequence[str], images: Sequence[Path] = ()) -> list[Query]:
    """Turn arguments into queries: those that end like an image file are images, the others are sentences.

    Args:
        words: sentences and paths, as the user typed them.
        images: paths of images, whatever their ending.

    Raises:
        OpenVSEError: an image does not exist, or there is no query.
    """
    queries = [image_query(word) if names_image(word) else Query(word) for word in words]
    queries += [image_query(path) for path in images]
    if not queries:
        raise OpenVSEError("there is no query: give a sentence, the path of an image, or --image FILE")
    return queries


def answers(engine: SearchEngine, queries: Sequence[Query], top_k: int) -> list[list[Hit]]:
    """Return the best images for every query, in the order of the queries; each kind is embedded in one batch.

    An empty sentence has no hits.

    Raises:
        DataError: every query is empty.
    """
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


def refuse_image_questions(questions: Sequence[str]) -> None:
    """Raise OpenVSEError for a question that is the path of an image."""
    for question in questions:
        if names_image(question):
            raise OpenVSEError(
                f"{question} is an image, not a question: give one image first, then the questions about it"
            )
