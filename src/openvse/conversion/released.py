"""What released checkpoints have in common, and what one becomes here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

from openvse.errors import CheckpointError

Weights: TypeAlias = dict[str, Tensor]
# From the beginning of a name to the beginning of ours; None for what has no effect on an embedding.
Names: TypeAlias = Mapping[str, str | None]


@dataclass(frozen=True)
class Released:
    """A checkpoint as the repositories write it.

    Attributes:
        options: the command line that it was trained with; empty where the file holds weights alone.
        image: weights of the image encoder, by their names in the repository.
        text: weights of the text encoder.
        progress: epoch and score on validation, as far as the file says.
    """

    options: Mapping[str, Any]
    image: Weights
    text: Weights
    progress: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A released checkpoint in the terms of openvse.

    Attributes:
        recipe: what to build.
        weights: of the model that the recipe builds, by our names; word embeddings still in the order of the
            checkpoint's own vocabulary.
        vocabulary: where the vocabulary lies in the repository; what to take when the user gives none.
        notes: what the user should know.
    """

    recipe: dict[str, Any]
    weights: Weights
    vocabulary: str
    notes: tuple[str, ...] = ()


def released(tree: Any) -> Released:
    """Find options and the two encoders' weights in a checkpoint; ``module.`` of data-parallel training goes.

    Raises:
        CheckpointError: there are no two encoders in it.
    """
    whole = tree if isinstance(tree, dict) else {}
    model = whole.get("model", tree)
    if isinstance(model, list) and len(model) == 2 and all(isinstance(side, dict) for side in model):
        image, text = map(_weights, model)
    else:
        everything = _weights(model if isinstance(model, dict) else {})
        image, text = (_below(everything, side) for side in ("img_enc.", "txt_enc."))
    if not image or not text:
        raise CheckpointError(
            "it holds no image and text encoder as VSE-infinity, PVSE and VSE+2AD save them: only checkpoints of "
            "these repositories are converted"
        )
    options = whole.get("opt", whole.get("args", {}))
    progress = {key: whole[key] for key in ("epoch", "best_rsum", "best_score", "rsum") if key in whole}
    return Released(options if isinstance(options, dict) else {}, image, text, progress)


def renamed(weights: Weights, names: Names) -> Weights:
    """Give weights our names, by the longest beginning that fits.

    Raises:
        CheckpointError: a weight is not in the list, so that something would be missing from the embedding.
    """
    result: Weights = {}
    for name, weight in weights.items():
        prefix = max((begin for begin in names if name.startswith(begin)), key=len, default=None)
        if prefix is None:
            raise CheckpointError(
                f"it holds weights {name!r}, which the released code does not have: a changed model is not converted"
            )
        ours = names[prefix]
        if ours is not None:
            result[ours + name.removeprefix(prefix)] = weight
    return result


def sides(image: Weights, text: Weights) -> Weights:
    """Join the weights of the two towers under the names that a model gives them."""
    return {f"image.{name}": weight for name, weight in image.items()} | {
        f"text.{name}": weight for name, weight in text.items()
    }


def refuse_options(options: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """Raise CheckpointError if one of these options is on, with its reason."""
    for name, reason in reasons.items():
        if options.get(name):
            raise CheckpointError(f"it was trained with --{name}, and {reason}")


def shape(weights: Weights, name: str) -> tuple[int, ...]:
    """Return the shape of a weight that every checkpoint of the kind has.

    Raises:
        CheckpointError: it has not.
    """
    if name not in weights:
        raise CheckpointError(f"it has no weights {name!r}: the file is incomplete, or of another project")
    return tuple(weights[name].shape)


def count(weights: Weights, begin: str) -> int:
    """Return how many numbered things follow a beginning: ``layer.0.``, ``layer.1.``, ..."""
    return len({name.removeprefix(begin).partition(".")[0] for name in weights if name.startswith(begin)})


def _weights(state: Mapping[str, Any]) -> Weights:
    return {
        ".".join(part for part in str(name).split(".") if part != "module"): value.float()
        if value.is_floating_point()
        else value
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def _below(weights: Weights, begin: str) -> Weights:
    return {n.removeprefix(begin): weight for n, weight in weights.items() if n.startswith(begin)}
