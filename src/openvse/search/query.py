"""Queries of one or several parts, and the wanted page of hits: the settings of a search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from openvse.errors import DataError
from openvse.files import several, whole_characters
from openvse.media.names import names_image
from openvse.settings import FIRST, Declared, check_settings

if TYPE_CHECKING:  # a command line that only prints its help reads neither images nor conditions
    from openvse.indexing.conditions import Condition
    from openvse.media.videos import ClipSource

WHICH = "Which hits"
"""The panel of the help for the less common settings of a page."""

OneQuery: TypeAlias = "str | Query | ClipSource"
"""A query by itself: a sentence, an image, or a ``Query``."""

Only = Literal["words", "similarity"]
"""One of the two rankings of a search."""

OnePer = Literal["file", "scene"]
"""The unit of which only the first hit is listed."""


@dataclass(frozen=True)
class Query:
    """A query. The score of an item is the weighted mean of the scores of the query's parts.

    Content to avoid is subtracted: ``avoid_weight`` times the score of each of its terms. For a model with one
    embedding an item and the cosine, this is a search with the weighted sum of the embeddings.

    Attributes:
        text: a sentence that hits should fit.
        image: an image that hits should resemble, by itself or with the sentence.
        like: an item of the index that hits should resemble, by its path below the indexed folder. It is no hit.
        avoid: sentences that hits should not fit: half of their scores is subtracted.
        image_weight: the weight of the image, and of the item, beside a sentence, which has 1 minus it.
        avoid_weight: the part of the score of each sentence to avoid that is subtracted.

    U+FFFD replaces half a character of a sentence.

    Raises:
        DataError: the query is empty, ``like`` or ``avoid`` holds no text, or a weight is outside its range, or is set
            although there is nothing to weigh.
    """

    text: str = ""
    image: Annotated["ClipSource | None", Declared(metavar="IMAGE")] = None
    like: Annotated[str | None, Declared(metavar="ITEM")] = None
    avoid: Annotated[Sequence[str], Declared(metavar="TEXT")] = ()
    image_weight: Annotated[float, Declared(0, 1, words=("weight of --image",))] = 0.5
    avoid_weight: Annotated[float, Declared(0, words=("weight of --avoid",))] = 0.5

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "text", whole_characters(*several([self.text], "query")))
        object.__setattr__(self, "avoid", tuple(map(whole_characters, self.avoid)))
        if not self.text.strip() and self.image is None and self.like is None:
            raise DataError("the query is empty: give a sentence, an image, or an item of the index")
        several(["" if self.like is None else self.like], "like")
        if self.image_weight != Query.image_weight and not (self.text.strip() and self.shows):
            raise DataError("image_weight is for a text with an image or an item: leave it out, or give both")
        if self.avoid_weight != Query.avoid_weight and not self.avoid:
            raise DataError("avoid_weight is for what the items should not fit: leave it out, or give avoid")

    @classmethod
    def of(cls, given: Any) -> Query:
        """Return a sentence, an image in any form, or a query, as a query. Text that ends like an image is its path."""
        from openvse.media.images import ONE_IMAGE, one_or_several

        if isinstance(given, Query):
            return given
        if isinstance(given, str) and not names_image(given):
            return cls(given)
        try:
            is_gone = isinstance(given, str | Path) and not Path(given).is_file()
        except (OSError, ValueError):  # a name that no file can have
            is_gone = True
        if is_gone:
            raise DataError(f"{given}: this image does not exist: check the path, or give Query(text=...)")
        if not isinstance(given, (str, *ONE_IMAGE)):
            raise DataError(f"a query is of the type {type(given).__name__}: give a sentence or an image")
        (image,) = one_or_several(given, "a query")  # the bytes of an open file
        return cls(image=image)

    @property
    def shows(self) -> bool:
        """Whether it has an image, or an item of the index."""
        return self.image is not None or self.like is not None

    @property
    def is_sentence(self) -> bool:
        """Whether it is a sentence and nothing else, so that its scores are the model's."""
        return not self.shows and not any(term.strip() for term in self.avoid)

    @property
    def is_image(self) -> bool:
        """Whether it is an image and nothing else."""
        avoids = any(term.strip() for term in self.avoid)
        return self.image is not None and self.like is None and not (avoids or self.text.strip())

    def weights(self) -> tuple[float, float, float]:
        """Return the weights of text, image and item, which add up to 1."""
        seen = [self.image is not None, self.like is not None]
        share = self.image_weight if self.text.strip() else 1.0
        each = share / max(1, sum(seen))
        return (1 - share if any(seen) else 1.0) if self.text.strip() else 0.0, each * seen[0], each * seen[1]


def only_sentences(what: str, queries: Iterable[Query | str]) -> None:
    """Raise DataError unless all queries are sentences and nothing else, which a setting needs."""
    if not all(isinstance(query, str) or query.is_sentence for query in queries):
        raise DataError(f"{what} takes sentences alone as queries: leave it out, or images, items and what to avoid")


@dataclass(frozen=True)
class Page:
    """The hits of a query to return.

    Attributes:
        top_k: the number of hits of each query.
        skip: the number of best hits to leave out, for a later page. Ranks go on.
        where: conditions that all hits fulfil, such as 'taken >= 2024-05', 'near = 52.5,13.4,20km', 'path ~ holiday/*',
            'size > 2MB', or one on a key of the metadata.
        min_score: the lowest score of a hit.
        min_precision: the lowest probability of a hit, for sentences alone. The model needs a curve ('openvse evaluate
            --calibrate').
        expected: the expected number of items that are relevant to a sentence, for the probabilities. Default: as in
            the data of the model's curve.
        one_per: only the best segment of a clip (``file``), or only the first of images that are nearly the same, with
            a count of the others (``scene``). Default: all hits.
        only: only items with words of the sentence in their names, captions or keywords (``words``), or the ranking by
            visual similarity alone (``similarity``). Default: both.

    Raises:
        DataError: a number is outside its range, ``where`` holds no conditions, or a word is not allowed.
    """

    top_k: Annotated[int, Declared(1, panel=FIRST, metavar="N", words=("--top-k", "-k"))] = 10
    skip: Annotated[int, Declared(0, panel=WHICH, metavar="N")] = 0
    where: Annotated["Sequence[Condition | str]", Declared(panel=FIRST, metavar="TEST")] = ()
    min_score: Annotated[float | None, Declared(panel=WHICH, metavar="X")] = None
    min_precision: Annotated[float | None, Declared(0, 1, above=True, panel=WHICH, metavar="P")] = None
    expected: Annotated[float | None, Declared(0, above=True, panel=WHICH, metavar="N")] = None
    one_per: Annotated[OnePer | None, Declared(panel=WHICH, metavar="WHAT")] = None
    only: Annotated[Only | None, Declared(panel=WHICH, metavar="WHICH")] = None

    def __post_init__(self) -> None:
        from openvse.indexing.conditions import Condition

        check_settings(self, (str, Condition))

    @property
    def is_limited(self) -> bool:
        """Whether hits with low scores are left out."""
        return self.min_score is not None or self.min_precision is not None


def check_pages(queries: Iterable[Query], pages: Iterable[Page]) -> None:
    """Raise DataError if a page has a setting for sentences alone, and its query is something else."""
    for query, page in zip(queries, pages, strict=True):
        words = page.only if page.only == "words" else None
        for what, given in (("min_precision", page.min_precision), ("expected", page.expected), ("only=words", words)):
            if given is not None:
                only_sentences(what, [query])
