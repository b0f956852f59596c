"""Released checkpoints in a common form for all repositories, and their vocabularies.

A checkpoint has options, of which only plausible values are accepted, and the weights of two encoders. A plan of its
repository turns them into a model. No code in a file is run.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from openvse.conversion.weights import Weights, again, dense_weights
from openvse.errors import CheckpointError, decoded_text
from openvse.files import parse_json

_MAX_VOCABULARY = 1 << 24  # bytes


_NAME = re.compile(r"[\w./-]{1,100}")


PROGRESS = ("epoch", "best_rsum", "best_score", "rsum")


PLAUSIBLE: Mapping[str, tuple[float, float]] = {
    "crop_size": (32, 4096),
    "div_weight": (0, 1000),
    "input_scale_factor": (1 / 8, 16),  # of 256 pixels: one grid cell at least
    "lr": (1e-8, 1),
    "margin": (0, 2),
    "max_video_length": (1, 1000),
    "mmd_weight": (0, 1000),
    "scale": (0, 100),
    "tau": (0.001, 10),
    "weight_decay": (0, 1),
}
"""The smallest and the largest value of the options that are numbers."""


def read_vocabulary(path: Path) -> list[str]:
    """Read the words of a ``Vocabulary`` of VSE++ or a related project, in the order of their ids.

    The repositories store it as JSON (``word2idx``, ``idx2word``, ``idx``) or as a pickle, of which only the
    attributes of this one class are read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_VOCABULARY + 1)
        if len(content) > _MAX_VOCABULARY:
            raise ValueError("too large")
        if path.suffix == ".json":
            tree = parse_json(decoded_text(content, path))
        else:
            tree = _VocabularyUnpickler(BytesIO(content), encoding="utf-8").load()
    except OSError as error:
        raise CheckpointError(
            f"vocabulary {path} cannot be read ({error.strerror}): check the path"
        ) from error
    except _ForeignCodeError as error:
        raise CheckpointError(
            f"{path} tries to run {error}, which no vocabulary needs. Nothing was run: get the file elsewhere"
        ) from error
    except Exception as error:  # damaged bytes fail in many ways
        raise _no_vocabulary(path, type(error).__name__) from error
    fields = vars(tree) if isinstance(tree, _Vocabulary) else tree
    ids = fields.get("word2idx") if isinstance(fields, dict) else None
    if not isinstance(ids, dict) or not ids or {*map(str, ids.values())} != {*map(str, range(len(ids)))}:
        raise _no_vocabulary(path, "no word2idx with an id for each word, from 0 on")
    return [str(word) for word, _ in sorted(ids.items(), key=lambda item: int(item[1]))]


class _Vocabulary:
    """Replaces the class of the repositories. It only has attributes."""


class _ForeignCodeError(Exception):
    """A pickle asks for a class or function that a vocabulary does not need."""


class _VocabularyUnpickler(pickle._Unpickler):
    """The Python unpickler, because the one in C allocates as many objects as a pickle claims to have."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "Vocabulary":  # in the module vocab, lib.vocab or __main__
            return _Vocabulary
        raise _ForeignCodeError(f"{module}.{name}")


def _no_vocabulary(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a vocabulary ({reason}): give the .json or .pkl file that the model was trained with"
    )


@dataclass(frozen=True)
class ReleasedCheckpoint:
    """A checkpoint that the released code of a repository wrote, with the names of weights there.

    ``options`` are the command line of the training, empty if the file only holds weights. ``progress`` is the epoch
    and the validation score, if the file states them.
    """

    options: Mapping[str, Any]
    image: Weights
    text: Weights
    progress: Mapping[str, int | float]


@dataclass(frozen=True)
class ReleasedPlan:
    """The recipe of the model to build for a checkpoint, and the weights by the names of that model.

    Word embeddings are still in the order of the checkpoint's own vocabulary. ``vocabulary`` is its place in the
    repository, or the tokenizer to use if the user gives none. ``notes`` are remarks for the user.
    """

    recipe: dict[str, Any]
    weights: Weights
    vocabulary: str
    notes: tuple[str, ...] = ()


def find_encoders(tree: Any) -> ReleasedCheckpoint:
    """Find options and weights of both encoders in a file. Raise CheckpointError if one is missing."""
    whole = tree if isinstance(tree, dict) else {}
    model = whole.get("model", tree)
    if isinstance(model, list) and len(model) == 2 and all(isinstance(side, dict) for side in model):
        image, text = map(dense_weights, model)
    else:
        everything = dense_weights(model if isinstance(model, dict) else {})
        image, text = (again(everything, side, "") for side in ("img_enc.", "txt_enc."))
    if not image or not text:
        raise CheckpointError(
            "it does not hold an image and a text encoder as VSE-infinity, PVSE and VSE+2AD save them: give a "
            "checkpoint of one of these repositories"
        )
    options = whole.get("opt", whole.get("args", {}))
    progress = {key: whole[key] for key in PROGRESS if isinstance(whole.get(key), int | float)}
    return ReleasedCheckpoint(options if isinstance(options, dict) else {}, image, text, progress)


OptionT = TypeVar("OptionT", bool, str, int, float)


def option(options: Mapping[str, Any], name: str, default: OptionT) -> OptionT:
    """Return an option of the command line, of the type of its default. Raise CheckpointError if not plausible."""
    value = options.get(name, default)
    if isinstance(default, bool):
        plausible, expected = isinstance(value, bool), "True or False"
    elif isinstance(default, str):
        plausible, expected = isinstance(value, str) and _NAME.fullmatch(value) is not None, "a name"
    else:
        (lowest, highest), whole = PLAUSIBLE[name], isinstance(default, int)
        kind = int if whole else int | float
        plausible = isinstance(value, kind) and not isinstance(value, bool) and lowest <= value <= highest
        expected = f"a {'whole ' * whole}number from {lowest:g} to {highest:g}"
    if not plausible:
        plain = isinstance(value, bool | int | float | str | None)
        shown = repr(value)[:60] if plain else f"a value of type {type(value).__name__}"
        raise CheckpointError(
            f"its option --{name} is {shown}, but it must be {expected}. The file is damaged or was changed: download "
            f"it again, or correct the option and save the file again"
        )
    return type(default)(value)


def refuse_options(options: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """Raise CheckpointError if one of these options is on, with its reason."""
    for name, reason in reasons.items():
        if option(options, name, False):
            raise CheckpointError(f"it was trained with --{name}, but {reason}")
