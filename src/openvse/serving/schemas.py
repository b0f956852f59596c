"""The schemas of requests, which FastAPI validates and documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from openvse.errors import DataError, JsonError
from openvse.files import parse_json
from openvse.indexing.conditions import parse_condition
from openvse.media.videos import ClipSource
from openvse.search import Page, Query
from openvse.serving.served import Served
from openvse.settings import Declared, settings_of

LARGEST_PAGE = 200
"""The largest number of hits of one page."""

_LARGEST = 2**53
_WILD = 8
_MOST_FIELDS = 64
_MOST_CHARACTERS = 10_000


def _readable(text: str) -> str:
    """Return a text. Raise ValueError if it holds half of a surrogate pair, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the text holds a character that is not complete") from error
    return text


def _listed(given: object) -> object:
    """Return a list of texts. One text that is a list in JSON, as some clients write lists, is that list."""
    match given if isinstance(given, list) else [given]:
        case [str(text)] if text.strip().startswith("[") and text.strip().endswith("]"):
            try:
                return parse_json(text)
            except JsonError as error:
                raise ValueError("should be a list of texts") from error
        case [str()] as texts:
            return texts
    return given


Sentence = Annotated[str, Field(max_length=1000), AfterValidator(_readable)]
Id = Annotated[str, Field(max_length=4096), AfterValidator(_readable)]
QuestionText = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_readable)]
Sentences = Annotated[list[Sentence], BeforeValidator(_listed)]
Name = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="The name of an image that was sent before.")]
Key = Annotated[int, Field(ge=0, le=_LARGEST, description="The number of an item, as hits give it.", examples=[1])]

_TYPES: Mapping[str, Any] = {
    "text": Annotated[Sentence, Field(examples=["a dog on a beach"])],
    "image": Name,
    "like": Annotated[Id, BeforeValidator(lambda given: str(given) if type(given) is int else given)],
    "avoid": Annotated[Sentences, Field(max_length=8, examples=[["a leash"]])],
    "where": Annotated[Sentences, Field(max_length=16, examples=[["date >= 2024", "size < 2MB"]])],
}
"""The form that settings have in a request, if it is another one than in Python."""

_MOST = {"top_k": LARGEST_PAGE, "skip": 10_000, "avoid_weight": 100, "expected": 1e9}
"""The largest numbers, if a server allows less than Python."""

OLD = {"q": "text", "like_id": "like"}
"""The names of fields in version 1.0, which are still read."""

PagedQuery: TypeAlias = tuple[Query, Page]
"""A query, and the wanted hits."""


def _checked(setting: Declared, given: Any, read: Callable[[Any], Any]) -> Any:
    """Return a value of JSON or an address that its setting allows. Raise an error in the words of the setting."""
    with suppress(ValidationError):
        given = given if isinstance(given, bool) else read(given)
    try:
        return setting.checked(given)
    except DataError as error:
        raise PydanticCustomError("setting", "{told}", {"told": str(error)}) from error


class Fields(BaseModel):
    """The fields of a request. Others are refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _are_few(cls, given: Any) -> Any:
        """Read old names. Raise ValueError for many fields, each of which would be an error of its own."""
        if isinstance(given, dict) and len(given) > _MOST_FIELDS:
            raise ValueError(f"have at most {_MOST_FIELDS} fields, not {len(given):,}")
        if not isinstance(given, dict):
            return given
        read = {OLD.get(name, name): value for name, value in given.items()}
        if len(read) < len(given):
            raise ValueError("have one name of a field: text for q, like for like_id")
        return read


def fields_of(kind: type) -> type[Fields]:
    """Return the fields of a request that are settings of a class."""
    made: dict[str, Any] = {}
    for name, each in settings_of(kind).items():
        setting = replace(each, most=min(each.most, _MOST.get(name, math.inf)))
        typed = (
            _TYPES.get(name)
            or Annotated[
                setting.type, WrapValidator(partial(_checked, setting)), Field(json_schema_extra={**setting.bounds})
            ]
        )
        about = Field(description=each.about)
        if each.default is None:
            typed, about.examples = typed | None, [None]
        made[name] = Annotated[typed, about], each.default if not each.is_list else []
    return create_model(f"{kind.__name__}Fields", __base__=Fields, **made)


class SearchFields(fields_of(Query)):  # type: ignore[misc]
    """One query, with at least one of text, like and an image."""


class PageFields(fields_of(Page)):  # type: ignore[misc]
    """Which hits of a query to return."""

    rerank: Annotated[bool, Field(description="Let the second model rank the first hits again.")] = False


class OneSearch(SearchFields, PageFields):
    """One query, and which of its hits to return."""


class ItemFields(Fields):
    """An item."""

    key: Key


class SimilarFields(ItemFields, PageFields):
    """An item, and which of the hits that resemble it to return."""


class ShownFields(ItemFields):
    """An item, and the size of its picture."""

    large: Annotated[bool, Field(description="Whether the picture has up to 1,280 pixels.")] = False


class CaptionFields(Fields):
    """Captions of an item."""

    captions: Annotated[
        Sentences,
        Field(
            min_length=1, max_length=20, description="Sentences or names of things.", examples=[["a dog on a beach"]]
        ),
    ]


class TaughtFields(ItemFields, CaptionFields):
    """An item, and captions to save for it."""


class NextFields(Fields):
    """Which items not to name."""

    passed: Annotated[
        list[Key], Field(max_length=1000, description="Items that were passed over.", examples=[[3]])
    ] = []


class ManySearches(PageFields):
    """Several queries, and which hits of each to return."""

    queries: Annotated[
        list[SearchFields],
        Field(min_length=1, max_length=64, examples=[[{"text": "a dog"}, {"text": "a cat", "avoid": ["indoors"]}]]),
    ]

    @model_validator(mode="after")
    def _are_short(self) -> ManySearches:
        """Raise ValueError for sentences that would keep the model, and so all others, for seconds."""
        total = sum(len(text) for each in self.queries for text in (each.text, *each.avoid))
        if total > _MOST_CHARACTERS:
            raise ValueError(f"have at most {_MOST_CHARACTERS:,} characters in all sentences, not {total:,}")
        return self


class QuestionBody(Fields):
    """A question about an image."""

    question: Annotated[QuestionText, Field(examples=["what colour is the dog?"])]


class JudgementBody(Fields):
    """Whether an item fits a sentence."""

    text: Annotated[Sentence, Field(min_length=1, examples=["a dog on a beach"])]
    key: Key
    fits: Annotated[bool | None, Field(description="null takes back what was said.", examples=[True])]


class Session(Fields):
    """The token, which the page exchanges for a cookie."""

    token: Annotated[str, Field(max_length=1000)]


def asked_by(fields: SearchFields, page: PageFields, served: Served, image: ClipSource | None = None) -> PagedQuery:
    """Return the query of a request, and the page of its hits."""
    where = tuple(map(parse_condition, page.where))
    for condition in where:
        if condition.field.removeprefix("meta.") in served.hidden_fields:  # answers would tell what is hidden
            raise DataError(f"{condition.field} names places of the server: give a condition on another field")
        if condition.value.count("*") > _WILD:  # more take too long to compare
            raise DataError(f"{condition.value!r} has more than {_WILD} stars: give a simpler pattern")
    asked = {name: getattr(fields, name) for name in settings_of(Query)} | {"image": image}
    if (like := fields.like) is not None:
        is_key = like.isdecimal() and len(like) <= len(str(_LARGEST))
        asked["like"] = served.id_of(int(like) if is_key else served.key(like))
    return Query(**asked), Page(**{name: getattr(page, name) for name in settings_of(Page)} | {"where": where})


HIT_EXAMPLE: dict[str, Any] = {
    "rank": 1,
    "was": None,
    "score": 0.412,
    "probability": 0.83,
    "fit": "likely",
    "key": 17,
    "id": "holiday/0001.jpg",
    "title": "A dog runs on a beach.",
    "by": "both",
    "matched": ["beach"],
    "text": [{"text": "Beach bar", "confidence": 0.98, "box": [[0, 0], [1, 0], [1, 0.3], [0, 0.3]], "page": 3}],
    "alike": 0,
    "thumbnail": "/api/items/17/thumbnail?v=18a2-3f21",
}
FOUND_EXAMPLE: dict[str, Any] = {
    "hits": [HIT_EXAMPLE],
    "searched": 1000,
    "more": True,
    "fits": {"likely": 0.34, "possible": 0.21},
    "unknown_words": [],
    "warnings": [],
}
TAUGHT_EXAMPLE: dict[str, Any] = {
    "items": 1000,
    "captioned": 24,
    "learns_from": 20,
    "can_train": False,
    "is_training": False,
    "training": "",
    "next": [
        {
            "key": 17,
            "id": "holiday/0001.jpg",
            "name": "0001.jpg",
            "thumbnail": "/api/items/17/thumbnail?v=18a2-3f21",
            "words": ["golden retriever", "beach"],
        }
    ],
}
JUDGED_EXAMPLE: dict[str, Any] = {
    "items": [{"key": 17, "id": "holiday/0001.jpg", "fits": True}],
    "moving": 12,
    "half_is_now": 0.62,
}
