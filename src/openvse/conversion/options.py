"""The command line that a checkpoint holds; an option is only accepted if its value is plausible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from openvse.errors import CheckpointError

_NAME = re.compile(r"[\w./-]{1,100}")


def number(options: Mapping[str, Any], name: str, default: float, *, lowest: float, highest: float) -> float:
    """Return a number of the command line.

    Args:
        options: the command line.
        name: the name of the option, without its dashes.
        default: the value of the released code if the file does not state one.
        lowest: the smallest plausible value.
        highest: the largest plausible value.

    Raises:
        CheckpointError: the value is not a number, not finite, or outside of the range.
    """
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        raise _implausible(name, value, f"a number from {lowest:g} to {highest:g}")
    return float(value)


def whole_number(options: Mapping[str, Any], name: str, default: int, *, lowest: int, highest: int) -> int:
    """Return a whole number of the command line; arguments and errors are those of ``number``."""
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise _implausible(name, value, f"a whole number from {lowest} to {highest}")
    return value


def flag(options: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Return whether an option is on; raise CheckpointError if it is neither True nor False."""
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise _implausible(name, value, "True or False")
    return value


def label(options: Mapping[str, Any], name: str, default: str) -> str:
    """Return a name from the command line, such as that of a data set; raise CheckpointError if it is not a name."""
    value = options.get(name, default)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _implausible(name, value, "a name")
    return value


def refuse_options(options: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """Raise CheckpointError if one of these options is on, with its reason."""
    for name, reason in reasons.items():
        if flag(options, name):
            raise CheckpointError(f"it was trained with --{name}, but {reason}")


def _implausible(name: str, value: Any, expected: str) -> CheckpointError:
    plain = isinstance(value, bool | int | float | str | None)
    shown = repr(value)[:60] if plain else f"a value of type {type(value).__name__}"
    return CheckpointError(
        f"its option --{name} is {shown}, but it must be {expected}: the file is damaged or was changed; download "
        f"it again, or correct the option and save the file again"
    )
