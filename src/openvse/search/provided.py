"""What the search half asks of the training half, each with its type. It is imported when it is first used.

A model argument is one that ``model_loader`` or ``same_model`` returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from openvse.registry import Provided

if TYPE_CHECKING:
    from openvse.indexing.embedding import StoredImages
    from openvse.indexing.index import Index
    from openvse.pipeline import WorkProgress
    from openvse.runtime.beside import Towers
    from openvse.runtime.model import WholeModel
    from openvse.search.catalogue import Catalogue
    from openvse.search.exact import ItemComparison
    from openvse.search.hits import Answer
    from openvse.search.query import Page, Query
    from openvse.stores import EngineAddress


@runtime_checkable
class RanksAgain(Protocol):
    """What ranks the first hits of an answer again."""

    def first(self, page: Page) -> Page:
        """Return the page of the index that a page of the new order needs."""

    def rerank(self, queries: Sequence[Query], answers: Sequence[Answer], pages: Sequence[Page]) -> list[Answer]:
        """Return pages of the new order. The answers are to the pages that ``first`` returns."""


@runtime_checkable
class MakesCatalogue(Protocol):
    """A function that opens a store of a model's fingerprint as the catalogue of a search."""

    def __call__(
        self, address: EngineAddress, compare: ItemComparison, fingerprint: str, *, images: Path | None = ...
    ) -> Catalogue: ...


@runtime_checkable
class MakesReranker(Protocol):
    """A function that makes a re-ranker from a model, which may read a feature store instead of the images."""

    def __call__(
        self, model: Any, *, top: int, weight: float = ..., features: Path | None = ..., keep_bytes: int = ...
    ) -> RanksAgain: ...


@runtime_checkable
class AnswersQuestions(Protocol):
    """A model that answers questions about images."""

    @property
    def reads_images(self) -> bool:
        """Whether it reads image files, and not only stored features."""

    def answer_json(self, image: Any, question: str) -> dict[str, Any]:
        """Return the answers with their probabilities, and the regions and words behind them, as JSON."""


@runtime_checkable
class WritesTowers(Protocol):
    """A function that writes the towers of a model beside its index."""

    def __call__(
        self,
        model: Any,
        index: str | Path,
        wanted: str | None = ...,
        *,
        progress: Callable[[int, int], None] | None = ...,
    ) -> Towers: ...


@runtime_checkable
class Teaches(Protocol):
    """The teacher of an index, which saves captions and learns from them. Several threads may ask it.

    Attributes:
        captions: the captions of the items, by their ids.
        saved: the model of the index on the disk.
    """

    captions: dict[str, list[str]]
    saved: Any

    @property
    def model(self) -> Any:
        """The model that knows what was taught."""

    @property
    def number(self) -> int:
        """A number that changes whenever something was learned."""

    def teach(self, item: str, captions: str | Iterable[str]) -> None:
        """Save captions of an item, and learn from them. The captions that it has stay."""

    def undo(self) -> str | None:
        """Remove the captions that were taught last, and return their item, or None without any."""

    def train(self) -> None:
        """Begin to train a model in the background, which is used if it is better."""

    def present(self, index: Index) -> tuple[Any, Index]:
        """Return the model and the index of a search that knows what was taught, for the index as it is opened."""

    def next(self, count: int = ..., skip: Collection[str] = ...) -> list[str]:
        """Return the items without a caption whose captions are expected to help most, the best first."""

    def words(self, item: str, count: int = ...) -> list[str]:
        """Return the best words for an item."""

    def progress(self) -> dict[str, Any]:
        """Return how much was taught, as JSON."""

    def close(self) -> None:
        """Let the index on the disk know what was learned, and let others teach."""


@runtime_checkable
class MakesTeacher(Protocol):
    """A function that opens the teacher of an index, with a file of captions if it is none of its folder."""

    def __call__(self, place: Path, model: Any, file: Path | None = ...) -> Teaches: ...


ANSWERER: Provided[Callable[[str, str], AnswersQuestions]] = Provided("answerer")
"""Loads a model that answers questions onto a device."""

CAPTIONS: Provided[Callable[[Path], Mapping[str, Sequence[str]]]] = Provided("captions")
"""Returns the captions of the images in a folder, by their path below it."""

COMPARISON: Provided[Callable[[Any, bool], ItemComparison]] = Provided("comparison")
"""Returns the comparison of items with queries by the model's own similarity, swapped if items are sentences."""

DESCRIBER: Provided[Callable[[Any, Path, Path, Callable[[WorkProgress], None] | None], StoredImages | None]] = Provided(
    "describer"
)
"""Returns what a teacher keeps of the images of a folder that is about to be indexed, for the index to read, too."""

EXPLAINER: Provided[Callable[[Any, Any, str], dict[str, Any]]] = Provided("explainer")
"""Returns the share of each part of an image, and of each word of a sentence, in their score, as JSON."""

MODEL_OF_NAMES: Provided[Callable[[Path, Path], None]] = Provided("model_of_names")
"""Writes the model of names for a folder of images that is about to be indexed."""

MODEL_SIZE: Provided[Callable[[str], int]] = Provided("model_size")
"""Returns the megabytes of a published model, or 0 if the name is none of one."""

RERANKER: Provided[MakesReranker] = Provided("reranker")

SAME_MODEL: Provided[Callable[[str, str, str], WholeModel]] = Provided("same_model")
"""Loads a model by its place, fingerprint and device in a worker."""

SENTENCES: Provided[Callable[[str], list[str]]] = Provided("sentences")
"""Returns the sentences of a file, or the training captions of a data set, for a query bank."""

STORED_FEATURES: Provided[Callable[[Any, str, Path | None], StoredImages | None]]
STORED_FEATURES = Provided("stored_features")
"""Returns the stored features that replace images, of a model, its place, and a store if one is named."""

STORE_ADDRESS: Provided[Callable[[str], EngineAddress]] = Provided("store_address", needs_torch=False)
"""Reads the URL of a store that is searched without the folder of its index."""

STORE_CATALOGUE: Provided[MakesCatalogue] = Provided("store_catalogue", needs_torch=False)
"""Opens such a store."""

TEACHER: Provided[MakesTeacher] = Provided("teacher")

TOWERS: Provided[WritesTowers] = Provided("towers")
