"""Contracts, which consist of promises. Each is a function that raises an error if the promise is broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from openvse.assembly.parts import build_part, construct
from openvse.registry import Maker, Registry
from openvse.specs.model import Part

PartT = TypeVar("PartT")
SubjectT = TypeVar("SubjectT")

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class BrokenContractError(AssertionError):
    """A part or data set breaks promises on which the rest of openvse relies. Each line names one."""


def hold(subject: SubjectT, promises: Sequence[Callable[[SubjectT], None]], name: str) -> None:
    """Check every promise. Each has the name of its function."""
    broken = []
    for check in promises:
        try:
            check(subject)
        except BrokenContractError as error:
            promise = check.__name__.strip("_").replace("_", " ")
            broken.append(f"{name} breaks the promise {promise!r}: {error}")
    if broken:
        raise BrokenContractError("\n".join(broken))


def require(holds: bool, message: str) -> None:
    """Raise BrokenContractError with a message unless the promise is kept."""
    if not holds:
        raise BrokenContractError(message)


def require_close(actual: Tensor, expected: Tensor, message: str, *, atol: float = 1e-12) -> None:
    """Raise BrokenContractError unless two tensors agree except for rounding. NaN never agrees."""
    if actual.shape != expected.shape:
        raise BrokenContractError(f"{message} (shape {list(actual.shape)} and {list(expected.shape)})")
    difference = (actual.detach() - expected.detach()).abs().nan_to_num(torch.inf)
    if difference.numel() and float(difference.max()) > atol:
        raise BrokenContractError(f"{message} (by up to {float(difference.max()):.2g})")


def make_part(
    registry: Registry[PartT], part: str | Maker[PartT], options: Mapping[str, Any], context: Mapping[str, Any]
) -> PartT:
    """Make a part as a recipe would. Raise RecipeError if the part refuses an option."""
    if isinstance(part, str):
        return build_part(registry, Part(name=part, **options), registry.kind, context)
    return construct(part, options, part_name(part), context)


def part_name(part: Any) -> str:
    """Return the name of a part in messages."""
    return part if isinstance(part, str) else getattr(part, "__name__", repr(part))
