"""What a run learns: the small interface between the trainer, which is the only one, and the tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from openvse.batches import EpochBatches
from openvse.encoders import Coverage
from openvse.model import Model
from openvse.specs import RunRecipe

BatchT = TypeVar("BatchT")


@dataclass(frozen=True)
class Step:
    """What a task makes of one batch.

    Attributes:
        terms: each weighted term of the loss, and their sum as ``loss``, with gradient.
        description: names the batch, for messages.
        at_collapse: computes the loss that this batch would have at collapse (``collapse.py``).
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
        collapse: what collapse means for this task, and what to do (``collapse.py``).
        model: trained in place.
        objectives: what is learned beside the model, one for each phase; empty where nothing is.
        data: the data set's name, how many images each split has, and its terms where they are known.
        intervals: of the last validation's metrics, as far as there are any.
        coverage: what the text encoder knows of the training sentences; None where it cannot tell.

    Args:
        recipe: batch size, seed.
        model: trained in place.
        objectives: see above.
        training: builds a batch from its key, and has as many examples as it says.
        data: see above.
        accelerator: which process of how many this is.
    """

    metric: ClassVar[str]
    unit: str
    collapse: ClassVar[str]

    model: Model
    objectives: Sequence[nn.Module]

    def __init__(
        self,
        recipe: RunRecipe,
        model: Model,
        objectives: Sequence[nn.Module],
        training: Dataset[BatchT],
        data: Mapping[str, Any],
        accelerator: Accelerator,
    ) -> None:
        self.recipe, self.model, self.objectives = recipe, model, objectives
        self.training, self.data, self.accelerator = training, data, accelerator
        self.intervals: Mapping[str, tuple[float, float]] = {}
        self.coverage: Coverage | None = None

    @property
    def steps_per_epoch(self) -> int:
        """How many batches a whole epoch has."""
        return len(self._batches(0, 0))

    def epoch(self, number: int, start: int) -> Iterable[BatchT]:
        """Return the batches of an epoch from one of them on; the order follows (seed, epoch) alone."""
        # A generator of its own: the loader must not draw from the stream that dropout draws from.
        return DataLoader(
            self.training,
            sampler=self._batches(number, start),
            batch_size=None,
            num_workers=self.recipe.data.num_workers,
            generator=torch.Generator().manual_seed(self.recipe.seed),
            collate_fn=_as_it_is,
        )

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

    def calibrate(self) -> None:
        """Give the model what its folder keeps of the last validation, before it is saved; nothing by default."""

    def curves(self) -> dict[str, list[float]]:
        """Return what the model has learned that a paper plots."""
        return {}

    def _batches(self, epoch: int, start: int) -> EpochBatches:
        return EpochBatches(
            len(self.training),  # type: ignore[arg-type]  # a Dataset of PyTorch need not have a length; ours have
            self.recipe.training.batch_size,
            seed=self.recipe.seed,
            epoch=epoch,
            start=start,
            rank=self.accelerator.process_index,
            num_processes=self.accelerator.num_processes,
        )


def _as_it_is(batch: BatchT) -> BatchT:
    """Keep DataLoader from looking into a finished batch."""
    return batch


AnyTask = Task[Any]
