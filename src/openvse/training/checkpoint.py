"""The state of a run on disk: all it needs to go on to the same numbers."""

from __future__ import annotations

import pickle
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from openvse.errors import TrainingError
from openvse.files import replacing
from openvse.training.plateau import Plateau

FORMAT_VERSION = 1

CHECKPOINT = "last.pt"
"""Its name in the folder of a run."""


@dataclass
class Progress:
    """Where a run stands.

    Attributes:
        epoch: the epoch under way, from 0; equal to the number of epochs when training is over.
        step: batches of it that are done.
        global_step: batches of all epochs that are done.
        best_score: the best value of ``metric`` on validation, -1 before the first.
        best_epoch: the epoch that reached it.
        loss_sum: sum of this epoch's losses, for its mean.
        seconds: time spent training, over all sessions.
        plateau: how far a stagnating validation has lowered the learning rate.
        metric: which of the validation's metrics selects the model.
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
    """Write a checkpoint so that the file under ``path`` is always whole: the old one or the new one.

    Raises:
        DiskError: the disk is full, or refuses.
    """
    with replacing(path) as partial, partial.open("wb") as file:
        torch.save({"format_version": FORMAT_VERSION, "progress": asdict(progress), **state}, file)


def load_checkpoint(path: Path) -> tuple[Progress, dict[str, Any]]:
    """Read a checkpoint; only tensors and plain values are unpickled.

    Raises:
        TrainingError: there is none, it is damaged, or another version of openvse wrote it.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        version = state.pop("format_version")
        position = state.pop("progress")
        if "best_rsum" in position:  # what it was called while there was retrieval alone
            position["best_score"] = position.pop("best_rsum")
        plateau = Plateau(**position.pop("plateau", {}))
        progress = Progress(**position, plateau=plateau)
    except (
        RuntimeError,
        EOFError,
        pickle.UnpicklingError,
        KeyError,
        TypeError,
        ValueError,
        OSError,
    ) as error:
        reason = shorten(str(error) or type(error).__name__, width=120, placeholder=" ...")
        raise TrainingError(
            f"checkpoint {path} is damaged ({reason}): begin anew with --overwrite, or in another folder; "
            f"best/ beside it is untouched"
        ) from error
    if version != FORMAT_VERSION:
        raise TrainingError(f"checkpoint {path} has format {version}, this openvse reads {FORMAT_VERSION}")
    return progress, state
