"""The schemas of requests, which FastAPI validates and documents."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from openvse.errors import DataError, JsonError
from openvse.files import parse_json
from openvse.indexing.conditions import parse_condition
from openvse.media.videos import ClipSource
from openvse.search import Page, Query
from openvse.search.query import OnePer, Only
from openvse.serving.served import Served

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
Name = Annotated[
    str, Field(pattern="^[0-9a-f]{32}$", description="The name of an image that was sent before.")
]
Key = Annotated[
    int, Field(ge=0, le=_LARGEST, description="The number of an item, as hits give it.", examples=[1])
]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
NOTHING = Field(examples=[None])


PagedQuery: TypeAlias = tuple[Query, Page]
"""A query, and the wanted hits."""


class Fields(BaseModel):
    """The fields of a request. Others are refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _are_few(cls, given: Any) -> Any:
        """Raise ValueError for many fields, each of which would be an error of its own."""
        if isinstance(given, dict) and len(given) > _MOST_FIELDS:
            raise ValueError(f"have at most {_MOST_FIELDS} fields, not {len(given):,}")
        return given


class SearchFields(Fields):
    """One query, with at least one of q, like and an image."""

    q: Annotated[Sentence, Field(description="A sentence.", examples=["a dog on a beach"])] = ""
    like: Annotated[Key | None, NOTHING, Field(description="An item that hits should resemble.")] = None
    like_id: Annotated[Id, Field(description="The same, by its path below the indexed folder.")] = ""
    image: Annotated[
        Name | None, NOTHING, Field(description="The same, an image that was sent to /api/images.")
    ] = None
    avoid: Annotated[
        Sentences,
        Field(max_length=8, description="Sentences that hits should not fit.", examples=[["a leash"]]),
    ] = []
    image_weight: Annotated[Share, Field(description="Weight of the image or item beside the sentence.")] = (
        0.5
    )
    avoid_weight: Annotated[
        float, Field(ge=0, le=100, allow_inf_nan=False, description="Weight of each sentence to avoid.")
    ] = 0.5


class PageFields(Fields):
    """Which hits of a query to return."""

    top_k: Annotated[int, Field(ge=1, le=LARGEST_PAGE, description="Hits of the page.")] = 50
    skip: Annotated[int, Field(ge=0, le=10_000, description="Hits before the page.")] = 0
    where: Annotated[
        Sentences,
        Field(
            max_length=16,
            description="Conditions that hits fulfil: FIELD OPERATOR VALUE with path, date, taken, near, size, "
            f"kind, text or a key of the metadata; a pattern has at most {_WILD} stars.",
            examples=[["date >= 2024", "size < 2MB"]],
        ),
    ] = []
    min_score: Annotated[Number | None, NOTHING, Field(description="The lowest score of a hit.")] = None
    min_precision: Annotated[
        float | None,
        NOTHING,
        Field(gt=0, le=1, description="The lowest probability; needs a model with a curve."),
    ] = None
    expected: Annotated[
        float | None, NOTHING, Field(gt=0, le=1e9, description="How many images are expected to be relevant.")
    ] = None
    only: Annotated[
        Only | None,
        NOTHING,
        Field(description="words or similarity: one of the two rankings that are joined otherwise."),
    ] = None
    one_per: Annotated[
        OnePer | None,
        NOTHING,
        Field(
            description="file: of the segments of a clip, only the best one. scene: of images that are nearly the "
            "same, only the first, with a count of the others."
        ),
    ] = None
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


class ManySearches(PageFields):
    """Several queries, and which hits of each to return."""

    queries: Annotated[
        list[SearchFields],
        Field(min_length=1, max_length=64, examples=[[{"q": "a dog"}, {"q": "a cat", "avoid": ["indoors"]}]]),
    ]

    @model_validator(mode="after")
    def _are_short(self) -> ManySearches:
        """Raise ValueError for sentences that would keep the model, and so all others, for seconds."""
        total = sum(len(text) for each in self.queries for text in (each.q, *each.avoid))
        if total > _MOST_CHARACTERS:
            raise ValueError(f"have at most {_MOST_CHARACTERS:,} characters in all sentences, not {total:,}")
        return self


class QuestionBody(Fields):
    """A question about an image."""

    question: Annotated[QuestionText, Field(examples=["what colour is the dog?"])]


class Session(Fields):
    """The token, which the page exchanges for a cookie."""

    token: Annotated[str, Field(max_length=1000)]


def asked_by(
    fields: SearchFields, page: PageFields, served: Served, image: ClipSource | None = None
) -> PagedQuery:
    """Return the query of a request, and the page of its hits."""
    where = tuple(map(parse_condition, page.where))
    for condition in where:
        if condition.field.removeprefix("meta.") in served.hidden_fields:  # answers would tell what is hidden
            raise DataError(
                f"{condition.field} names places of the server: give a condition on another field"
            )
        if condition.value.count("*") > _WILD:  # more take too long to compare
            raise DataError(f"{condition.value!r} has more than {_WILD} stars: give a simpler pattern")
    like = None if fields.like is None else served.id_of(fields.like)
    if fields.like_id:
        served.key(fields.like_id)  # there is such an item
        like = fields.like_id
    query = Query(fields.q, image, like, tuple(fields.avoid), fields.image_weight, fields.avoid_weight)
    numbers = page.min_score, page.min_precision, page.expected
    return query, Page(page.top_k, page.skip, where, *numbers, page.one_per, page.only)


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
    "text": [
        {"text": "Beach bar", "confidence": 0.98, "box": [[0.1, 0.2], [0.5, 0.2], [0.5, 0.3], [0.1, 0.3]]}
    ],
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
