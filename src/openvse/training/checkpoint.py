"""The state of a run on disk, from which the run continues to the same numbers."""

from __future__ import annotations

import pickle
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from openvse.errors import TrainingError, message_of
from openvse.files import replacing, stops_wait
from openvse.training.optimizer import Plateau

FORMAT_VERSION = 1

CHECKPOINT = "last.pt"
"""The name of the checkpoint in the folder of a run."""

_DAMAGED = (RuntimeError, EOFError, pickle.UnpicklingError, KeyError, TypeError, ValueError, OSError)
"""The errors of reading a damaged checkpoint."""

BEST = "best"
"""The name of the folder of its best model."""


@dataclass
class Progress:
    """The progress of a run: ``step`` batches of ``epoch``, which counts from 0 to the number of epochs, are done.

    ``best_score`` is -1 before the first validation.
    """

    epoch: int = 0
    step: int = 0
    global_step: int = 0
    best_score: float = -1.0
    best_epoch: int = -1
    loss_sum: float = 0.0
    seconds: float = 0.0
    plateau: Plateau = field(default_factory=Plateau)
    metric: str = "rsum"


def save_checkpoint(path: Path, progress: Progress, state: dict[str, Any]) -> None:
    """Write a checkpoint. The file under ``path`` is complete at every moment, either the old one or the new one.

    A Ctrl-C or another stop while the checkpoint is written takes effect when it is complete.
    """
    with stops_wait(), replacing(path) as partial, partial.open("wb") as file:
        torch.save({"format_version": FORMAT_VERSION, "progress": asdict(progress), **state}, file)


def load_checkpoint(path: Path) -> tuple[Progress, dict[str, Any]]:
    """Read a checkpoint without running pickles. Raise TrainingError if it is damaged or of another version."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        version = state.pop("format_version")
        position = state.pop("progress")
        progress = Progress(**position | {"plateau": Plateau(**position["plateau"])})
    except _DAMAGED as error:
        raise TrainingError(
            f"checkpoint {path} is damaged ({message_of(error, 120)}; the folder best/ next to it is whole): start "
            f"again with --overwrite, or in another folder"
        ) from error
    if version != FORMAT_VERSION:
        raise TrainingError(
            f"checkpoint {path} has format {version}, not {FORMAT_VERSION}: continue with the openvse that wrote it"
        )
    return progress, state
