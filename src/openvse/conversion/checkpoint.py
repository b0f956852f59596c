"""Released checkpoints: reading their files, and their common form for all repositories.

No code in a file is run. A checkpoint has options, of which only plausible values are accepted, and the weights of two
encoders. A plan of its repository turns them into a model.
"""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from openvse.conversion.weights import Weights, again, dense_weights
from openvse.errors import CheckpointError, decoded_text, message_of
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


def read_checkpoint(path: Path) -> Any:
    """Read a file of ``torch.save``, in its zip format or in the format before PyTorch 1.6.

    Of the pickled types, tensors and plain values are rebuilt, ``argparse.Namespace`` becomes a dict, and NumPy's
    numbers become Python's. Nothing else is imported or called.

    A zip archive has a checksum for each record, and all are verified first. Its tensors are then mapped from the file,
    so that each takes memory only when it is used. The older format has no checksums. Damage is only noticed if it
    breaks the structure of the file or gives numbers that are not finite.

    """
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file: give the .pth or .pth.tar of a released checkpoint")
    try:
        if zipped := zipfile.is_zipfile(path):
            _verify_archive(path)
        with torch.serialization.safe_globals(_harmless()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error explains it better
            return _plain(torch.load(path, map_location="cpu", weights_only=True, mmap=zipped), {})
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise _refused(path, str(error)) from error
    except Exception as error:  # damaged bytes fail in many ways
        raise CheckpointError(
            f"{path} is damaged or not a checkpoint of PyTorch ({message_of(error)}): download it again"
        ) from error


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


def _verify_archive(path: Path) -> None:
    """Raise CheckpointError if a record's checksum is wrong, or if the records claim more bytes than the file has."""
    with zipfile.ZipFile(path) as archive:
        claimed, size = sum(record.file_size for record in archive.infolist()), path.stat().st_size
        if claimed > size:
            raise CheckpointError(
                f"{path} has {size:,} bytes, but its records claim {claimed:,}: torch.save does not compress, so the "
                f"file was changed: get it from its authors, or save it again with torch.save"
            )
        damaged = archive.testzip()
    if damaged is not None:
        raise CheckpointError(
            f"{path} is damaged (the checksum of its record {damaged!r} is wrong): download it again"
        )


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


def _harmless() -> list[Any]:
    """Return the types that the repositories' checkpoints use in addition to tensors and plain values."""
    scalar = np.float64(0).__reduce__()[0]
    dtypes = [type(np.dtype(name)) for name in ("f8", "f4", "i8", "i4", "?")]
    # NumPy moved its function in version 2. A file names the place at the time of writing.
    places = [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    return [argparse.Namespace, np.dtype, *places, *dtypes]


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """Make plain values of a tree. ``done`` holds the results by identity, because parts of a pickle can be shared."""
    if id(value) in done:
        return done[id(value)]
    plain = value
    if isinstance(value, argparse.Namespace):
        plain = _plain(vars(value), done)
    elif isinstance(value, dict):
        plain = {key: _plain(each, done) for key, each in value.items()}
    elif isinstance(value, list | tuple):
        plain = [_plain(each, done) for each in value]
    elif isinstance(value, np.generic):
        plain = value.item()
    done[id(value)] = plain
    return plain


def _refused(path: Path, message: str) -> CheckpointError:
    """Return an error of one line that names the class or function in the file, from the long message of PyTorch."""
    for mark in ("GLOBAL ", "Unsupported class "):
        _, separator, rest = message.partition(mark)
        if separator and (what := rest.split()[0].strip("`.,")):
            return CheckpointError(
                f"{path} tries to run or build {what}, which no checkpoint of the supported repositories needs. "
                f"Nothing was run: get the file from its authors, or save only its tensors"
            )
    return CheckpointError(
        f"{path} is damaged or not a checkpoint of PyTorch (it is not a pickle of tensors): download it again"
    )


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
