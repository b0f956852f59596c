"""What a run learns: the small interface between the trainer, which is the only one, and the tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from openvse.model import Model

BatchT = TypeVar("BatchT")


@dataclass(frozen=True)
class Step:
    """What a task makes of one batch.

    Attributes:
        terms: each weighted term of the loss, and their sum as ``loss``, with gradient.
        description: names the batch, for messages.
        at_collapse: the loss that this batch would have if the model told nothing apart.
        diagnostics: numbers for the log.
    """

    terms: Mapping[str, Float[Tensor, ""]]
    description: str
    at_collapse: Callable[[], float]
    diagnostics: Callable[[], dict[str, float]]


class Task(ABC, Generic[BatchT]):
    """A model with the data it learns from, and what is measured on the way.

    Attributes:
        metric: of the validation; the largest selects the model.
        unit: what a batch is counted in.
        collapse: what it means, and what to do, if the loss stays at its value at collapse.
        model: trained in place.
        objectives: what is learned beside the model, one for each phase; empty where nothing is.
        steps_per_epoch: how many batches a whole epoch has.
    """

    metric: ClassVar[str]
    unit: ClassVar[str]
    collapse: ClassVar[str]

    model: Model
    objectives: Sequence[nn.Module]
    steps_per_epoch: int

    @abstractmethod
    def epoch(self, number: int, start: int) -> Iterable[BatchT]:
        """Return the batches of an epoch from one of them on; the order follows (seed, epoch) alone."""

    @abstractmethod
    def step(self, wrapped: nn.Module, batch: BatchT, phase: int) -> Step:
        """Compute the loss of a batch.

        Args:
            wrapped: the model, as processes and precision want it called.
            batch: on the device of the model.
            phase: which of ``training.phases`` it is.
        """

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Measure the model as it stands on the validation split; ``metric`` is among the names."""

    @abstractmethod
    def summary(self, metrics: Mapping[str, float]) -> str:
        """Say in a few words what a validation has measured."""

    def curves(self) -> dict[str, list[float]]:
        """Return what the model has learned that a paper plots."""
        return {}


AnyTask = Task[Any]
