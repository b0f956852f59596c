"""The interface of a task to the rest of openvse: how its models are built, trained and evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from openvse.errors import ModelError
from openvse.specs import ModelSpec, RunRecipe
from openvse.types import OnProgress

if TYPE_CHECKING:
    from openvse.model import Model
    from openvse.training.inputs import RunInputs
    from openvse.training.task import AnyTask


@dataclass(frozen=True)
class Request:
    """A request for an evaluation.

    Attributes:
        data: the data set, as ``open_corpus`` takes it.
        split: the split: train, validation, test or all.
        features: the feature stores to read instead of images: none, one for all models, or one for each model.
        folds: the number of equal parts that are evaluated separately and averaged.
        rerank: whether the last model re-ranks the best results of the others.
        rerank_top: the number of results of each query that are re-ranked.
        rerank_weight: w, the weight of the re-ranking score; the score of the other models has the weight 1 - w.
        allow_outside: whether images outside of the data's folder are allowed.
        batch_size: the number of images, sentences or questions in a batch.
        progress: a function that is called after every batch.
    """

    data: str
    split: str = "test"
    features: Sequence[Path] = ()
    folds: int = 1
    rerank: bool = False
    rerank_top: int = 20
    rerank_weight: float = 1.0
    allow_outside: bool = False
    batch_size: int = 128
    progress: OnProgress | None = None


@runtime_checkable
class Evaluation(Protocol):
    """The result of an evaluation."""

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings that the user should read before the figures."""
        ...

    def to_markdown(self) -> str:
        """Return the figures as a table."""
        ...

    def to_json(self) -> str:
        """Return the figures as JSON."""
        ...

    def write(self, folder: Path) -> Sequence[Path]:
        """Write the figures to files, and return the paths of the files."""
        ...


class TaskKind(ABC):
    """A kind of task, which recipes and model folders name. It imports heavy modules only when it is used.

    Attributes:
        recipe: the schema of its recipes.
        spec: the schema of its models.
    """

    recipe: ClassVar[type[RunRecipe]]
    spec: ClassVar[type[ModelSpec]]

    @abstractmethod
    def build(self, tree: Mapping[str, Any], folder: Path) -> Model:
        """Build a saved model without its weights, which are read next.

        Args:
            tree: the spec of the model from its folder, which may also have other keys.
            folder: the folder of the model, with its vocabulary, tokenizer and other files.
        """

    @abstractmethod
    def open(self, recipe: RunRecipe, inputs: RunInputs) -> AnyTask:
        """Open the data and features, and build the model and objectives that are trained."""

    @abstractmethod
    def evaluate(self, models: Sequence[Model], request: Request) -> Evaluation:
        """Measure models of this task."""

    def score(self, evaluation: Evaluation) -> tuple[str, float]:
        """Return the name and the value of the metric by which models are chosen; larger is better.

        Raises:
            ModelError: the task has no such metric, or nothing was measured.
        """
        raise ModelError(
            "models of this task have no metric by which one can be chosen: evaluate them instead"
        )


def published_for(provenance: Mapping[str, Any], protocol: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Return those published figures of a model's recipe that have this protocol, by their source.

    Args:
        provenance: the provenance of the model; it is not validated, so entries of another form are left out.
        protocol: the values that an entry must have, for instance ``{"num_images": 1000, "folds": 1}``; a value that
            an entry lacks counts as 1.
    """
    entries = provenance.get("published")
    return {
        str(entry["source"]): dict(entry["metrics"])
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
        and {"source", "metrics"} <= entry.keys()
        and all(entry.get(key, 1) == value for key, value in protocol.items())
    }
