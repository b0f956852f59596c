"""What the checkpoints of all repositories have in common, and the plan for a model made from one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openvse.conversion.weights import Weights, dense_weights
from openvse.errors import CheckpointError

PROGRESS = ("epoch", "best_rsum", "best_score", "rsum")


@dataclass(frozen=True)
class ReleasedCheckpoint:
    """A checkpoint as the released code of a repository writes it.

    Attributes:
        options: the command line that it was trained with; empty where the file holds weights alone.
        image: weights of the image encoder, by their names in the repository.
        text: weights of the text encoder.
        progress: epoch and score on validation, as far as the file says.
    """

    options: Mapping[str, Any]
    image: Weights
    text: Weights
    progress: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A checkpoint in the terms of openvse.

    Attributes:
        recipe: what to build.
        weights: of the model that the recipe builds, by our names, as the file has them; word embeddings still in
            the order of the checkpoint's own vocabulary.
        vocabulary: where the vocabulary lies in the repository; what to take when the user gives none.
        notes: what the user should know.
    """

    recipe: dict[str, Any]
    weights: Weights
    vocabulary: str
    notes: tuple[str, ...] = ()


def find_encoders(tree: Any) -> ReleasedCheckpoint:
    """Find options and the two encoders' weights in what a file holds; nothing is copied.

    Raises:
        CheckpointError: there are no two encoders in it, or a tensor is none that a checkpoint holds.
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
            "it holds no image and text encoder as VSE-infinity, PVSE and VSE+2AD save them: only checkpoints of "
            "these repositories are converted"
        )
    options = whole.get("opt", whole.get("args", {}))
    progress = {key: whole[key] for key in PROGRESS if isinstance(whole.get(key), int | float)}
    return ReleasedCheckpoint(options if isinstance(options, dict) else {}, image, text, progress)


def _below(weights: Weights, begin: str) -> Weights:
    return {n.removeprefix(begin): weight for n, weight in weights.items() if n.startswith(begin)}
