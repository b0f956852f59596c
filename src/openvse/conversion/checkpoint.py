"""The common form of the checkpoints of all repositories, their options, and the plan for a model made from one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openvse.conversion.weights import Weights, dense_weights
from openvse.errors import CheckpointError

PROGRESS = ("epoch", "best_rsum", "best_score", "rsum")


@dataclass(frozen=True)
class ReleasedCheckpoint:
    """A checkpoint that the released code of a repository wrote.

    Attributes:
        options: the command line of the training; empty if the file only holds weights.
        image: the weights of the image encoder, by their names in the repository.
        text: the weights of the text encoder, by their names in the repository.
        progress: the epoch and the validation score, if the file states them.
    """

    options: Mapping[str, Any]
    image: Weights
    text: Weights
    progress: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class ReleasedPlan:
    """The recipe and weights of openvse for a checkpoint.

    Attributes:
        recipe: the recipe of the model to build.
        weights: the weights of the file by the names of that model; word embeddings are still in the order of the
            checkpoint's own vocabulary.
        vocabulary: the place of the vocabulary in the repository, or the tokenizer to use if the user gives none.
        notes: remarks for the user.
    """

    recipe: dict[str, Any]
    weights: Weights
    vocabulary: str
    notes: tuple[str, ...] = ()


def find_encoders(tree: Any) -> ReleasedCheckpoint:
    """Find the options and the weights of both encoders in the content of a file; nothing is copied.

    Raises:
        CheckpointError: an encoder is missing, or a tensor is not of a kind that checkpoints hold.
    """
    whole = tree if isinstance(tree, dict) else {}
    model = whole.get("model", tree)
    if isinstance(model, list) and len(model) == 2 and all(isinstance(side, dict) for side in model):
        image, text = map(dense_weights, model)
    else:
        everything = dense_weights(model if isinstance(model, dict) else {})
        image, text = (_below(everything, side) for side in ("img_enc.", "txt_enc."))
    if not image or not text:
        raise CheckpointError(
            "it does not hold an image and a text encoder as VSE-infinity, PVSE and VSE+2AD save them: give a "
            "checkpoint of one of these repositories"
        )
    options = whole.get("opt", whole.get("args", {}))
    progress = {key: whole[key] for key in PROGRESS if isinstance(whole.get(key), int | float)}
    return ReleasedCheckpoint(options if isinstance(options, dict) else {}, image, text, progress)


def _below(weights: Weights, begin: str) -> Weights:
    return {n.removeprefix(begin): weight for n, weight in weights.items() if n.startswith(begin)}


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
