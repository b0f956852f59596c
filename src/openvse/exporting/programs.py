"""Programs of ``torch.export`` and ONNX files of them."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from openvse.errors import ModelError

_MOST_ITEMS = 1 << 16  # the largest batch of a program
_SINGLE_FILE = 1_900_000_000  # ONNX files hold at most 2 GiB; larger weights go into a file beside it


def traced(program: nn.Module, example: Sequence[Tensor], longest: int | None, side: str) -> Any:
    """Return the program of ``torch.export`` for batches and sets of any size.

    Args:
        program: the tower.
        example: its inputs: pixels; or values and mask.
        longest: the largest set; None if the sets have a fixed size.
        side: image or text, for messages.

    Raises:
        ModelError: a part of the tower cannot be exported.
    """
    batch = torch.export.Dim("batch", min=1, max=_MOST_ITEMS)
    if longest is None:
        sizes: tuple[dict[int, Any], ...] = ({0: batch},)
    else:
        shape = {0: batch, 1: torch.export.Dim("size", min=1, max=longest)}
        sizes = (shape, shape)
    try:
        with _silence(), torch.no_grad():
            return torch.export.export(program, tuple(example), dynamic_shapes=sizes, strict=False)
    except Exception as error:  # whatever a part does that a program cannot
        raise ModelError(
            f"the {side} side cannot be exported, because one of its parts does something that a program cannot "
            f"({_reason(error)}): take built-in parts, or report it"
        ) from error


def write_onnx(traced_program: Any, names: Sequence[str], path: Path, side: str) -> None:
    """Write a program as an ONNX file.

    Args:
        traced_program: what ``traced`` returned.
        names: the names of the inputs.
        path: the file.
        side: image or text, for messages.

    Raises:
        ModelError: ONNX has no operator for a part of the program, or the packages of the extra are missing.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ModelError("an export to ONNX needs more packages: pip install 'openvse[onnx]'") from error
    try:
        with _silence(), torch.no_grad():
            made: Any = torch.onnx.export(
                traced_program,
                input_names=list(names),
                output_names=["embeddings"],
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        raise ModelError(f"the {side} side has no form in ONNX ({_reason(error)}): report it") from error
    size = sum(weight.numel() * weight.element_size() for weight in traced_program.state_dict.values())
    made.save(str(path), external_data=size > _SINGLE_FILE)


def write_program(traced_program: Any, path: Path) -> None:
    """Write a program as a file of ``torch.export``."""
    with _silence():
        torch.export.save(traced_program, str(path))


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the notes of the exporters to their developers out of the output."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _reason(error: BaseException) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # without the colours of a terminal
    return " ".join(plain.split())[:200] or type(error).__name__
