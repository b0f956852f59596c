"""The small interface between the trainer and the tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from openvse.batches.pairs import EpochBatches, PairsOfImages, as_it_is, ready_for
from openvse.corpus.trained_on import Seen, SplitData
from openvse.errors import TrainingError
from openvse.model.base import Model
from openvse.model.start import Start
from openvse.model.two_tower import Tower
from openvse.specs import RunRecipe
from openvse.tokenization.vocabulary import Coverage

BatchT = TypeVar("BatchT")


@dataclass(frozen=True)
class Step:
    """The result of a task for one batch.

    Attributes:
        terms: weighted, and their sum as ``loss``, with gradients.
        at_collapse: a function that computes the loss of this batch at collapse (``records.py``).
        diagnostics: a function that computes further numbers for the log.
    """

    terms: Mapping[str, Float[Tensor, ""]]
    description: str
    at_collapse: Callable[[], Float[Tensor, ""]]
    diagnostics: Callable[[], Mapping[str, Float[Tensor, ""]]]


class Task(ABC, Generic[BatchT]):
    """A model with its training data, its loss and its validation.

    Attributes:
        metric: the metric of the validation whose largest value selects the model.
        collapse: the meaning of collapse for this task, and advice (``records.py``).
        objectives: the objectives with their parameters, one for each phase. Empty if the task has none.
        data: the name of the data set, the number of images in each split, and the licence if known.
        replicates: the metrics of the last validation on every resample of its bootstrap, the same resamples each time.
        coverage: the words of the training sentences that the text encoder knows. None if it cannot tell.
        splits: the identity of the splits "train" and "validation", by which a continued run notices other data. Empty
            if the task does not give one.
        start: the start model that the task made from its data. None if it made none.
        baseline: the metrics on validation that a run should beat. Empty if the task has no such model.
        advice: what would make the model better, a sentence for the end of a run. Empty if the task knows nothing.
    """

    metric: str
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
        self.replicates: Mapping[str, Float[np.ndarray, "R"]] = {}
        self.coverage: Coverage | None = None
        self.splits: Mapping[str, SplitData] = {}
        self.start: Start | None = None
        self.baseline: Mapping[str, float] = {}
        self.advice = ""
        # PyTorch does not demand a length of a Dataset. Ours have one.
        self._drawn: int | PairsOfImages = len(training)  # type: ignore[arg-type]

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in a whole epoch."""
        return len(self._batches(0, 0))

    def epoch(self, number: int, start: int) -> Iterable[BatchT]:
        """Return the batches of an epoch from number ``start`` on. Their order depends only on seed and epoch."""
        # The loader has its own generator, so that it does not change the random numbers of dropout.
        loader = DataLoader(
            self.training,
            sampler=self._batches(number, start),
            batch_size=None,
            num_workers=self.recipe.data.num_workers,
            generator=torch.Generator().manual_seed(self.recipe.seed),
            collate_fn=as_it_is,
        )
        return ready_for(self.accelerator.device, loader)

    @abstractmethod
    def step(self, wrapped: nn.Module, batch: BatchT, phase: int) -> Step:
        """Compute the loss of a batch by the wrapped model in a phase, given by its position in ``training.phases``."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Return the metrics of the present model on the validation split. ``metric`` is one of them.

        All processes of a run call it, so they can share the work. The metrics of the first process count.
        """

    def validate_start(self, start: Model) -> dict[str, float]:
        """Return the metrics of the model that a run starts from, of any task, like ``validate``.

        An OpenVSEError gives the reason if it cannot be measured, as the end of a sentence that begins with its name.
        """
        raise TrainingError(f"the task {self.recipe.task} does not measure it")

    def seen_by(self, provenance: Mapping[str, Any]) -> Seen:
        """Return how much of the validation split a model of this provenance was trained on, by default nothing."""
        return Seen(0, 0)

    @abstractmethod
    def summary(self, metrics: Mapping[str, float]) -> str:
        """Return the metrics of a validation in a few words."""

    def calibrate(self, model: Model) -> None:
        """Give a model the results of its last validation for its folder, before it is saved. By default nothing."""

    def finish(self, model: Model, folder: Path) -> None:
        """Add files that need no epoch to the folder of the best model, at the end of a run. By default nothing."""

    def curves(self) -> dict[str, list[float]]:
        """Return learned values that papers plot as curves: of the towers, as ``image.NAME`` and ``text.NAME``."""
        return {
            f"{side}.{name}": curve
            for side in ("image", "text")
            if isinstance(tower := getattr(self.model, side, None), Tower)
            for name, curve in tower.aggregator.curves().items()
        }

    def _batches(self, epoch: int, start: int) -> EpochBatches:
        return EpochBatches(
            self._drawn,
            self.recipe.training.batch_size,
            seed=self.recipe.seed,
            epoch=epoch,
            start=start,
            rank=self.accelerator.process_index,
            num_processes=self.accelerator.num_processes,
        )


AnyTask = Task[Any]
