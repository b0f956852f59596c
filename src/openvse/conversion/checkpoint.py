"""The common form of the checkpoints of all repositories, and the plan for a model that is made from one."""

from __future__ import annotations

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
class Plan:
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
