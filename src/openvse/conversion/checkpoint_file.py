"""Files of other projects, read without running anything that they contain."""

from __future__ import annotations

import argparse
import json
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from openvse.errors import CheckpointError


def read_checkpoint(path: Path) -> Any:
    """Read what ``torch.save`` wrote, in its zip format or the one before PyTorch 1.6.

    Of the pickled types, tensors and plain values are rebuilt, ``argparse.Namespace`` becomes a dict, and NumPy's
    numbers become Python's. Nothing else is imported or called.

    A zip archive has a checksum for each record, and all are verified first; its tensors are then mapped from the
    file, so that none is in memory before it is used. The older format has no checksums: there, damage shows only
    where it breaks the file's structure or yields numbers that are not finite.

    Returns:
        Nested dicts and lists of tensors (on the CPU) and plain values.

    Raises:
        CheckpointError: the file cannot be read, is truncated or damaged, or asks for anything else.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is no file: give the .pth or .pth.tar of a released checkpoint")
    try:
        zipped = _is_archive(path)
        if zipped:
            _verify_archive(path)
        with torch.serialization.safe_globals(_harmless()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what the next line of an error says better
            return _plain(torch.load(path, map_location="cpu", weights_only=True, mmap=zipped), {})
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise _refused(path, str(error)) from error
    except Exception as error:  # damaged bytes fail in many ways
        reason = str(error).strip().partition("\n")[0][:120] or type(error).__name__
        raise CheckpointError(
            f"{path} is damaged or no checkpoint of PyTorch ({reason}): download it again"
        ) from error


def read_vocabulary(path: Path) -> list[str]:
    """Read the words of a ``Vocabulary`` of VSE++ and its kin in the order of their ids.

    The repositories keep it as JSON (``word2idx``, ``idx2word``, ``idx``) or as a pickle, of which only the
    attributes of this one class are read.

    Raises:
        CheckpointError: the file is no such vocabulary, or its ids have gaps.
    """
    try:
        with path.open("rb") as file:
            tree = json.load(file) if path.suffix == ".json" else _VocabularyUnpickler(file).load()
    except OSError as error:
        raise CheckpointError(
            f"vocabulary {path} cannot be read ({error.strerror}): check the path"
        ) from error
    except _ForeignCodeError as error:
        raise CheckpointError(
            f"{path} wants to run {error}, which no vocabulary needs: nothing was run; get the file elsewhere"
        ) from error
    except Exception as error:  # damaged bytes fail in many ways
        raise _no_vocabulary(path, type(error).__name__) from error
    fields = vars(tree) if isinstance(tree, _Vocabulary) else tree
    ids = fields.get("word2idx") if isinstance(fields, dict) else None
    if (
        not isinstance(ids, dict)
        or not ids
        or {str(i) for i in ids.values()} != {str(i) for i in range(len(ids))}
    ):
        raise _no_vocabulary(path, "no word2idx with an id for each word, from 0 on")
    return [str(word) for word, _ in sorted(ids.items(), key=lambda item: int(item[1]))]


def _is_archive(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _verify_archive(path: Path) -> None:
    """Raise CheckpointError if a record's checksum is wrong, or if the records claim more bytes than the file has."""
    with zipfile.ZipFile(path) as archive:
        claimed, size = sum(record.file_size for record in archive.infolist()), path.stat().st_size
        if claimed > size:
            raise CheckpointError(
                f"{path} has {size:,} bytes, and its records claim {claimed:,}: torch.save does not compress, so the "
                f"file was changed; get it from its authors, or save it again with torch.save"
            )
        damaged = archive.testzip()
    if damaged is not None:
        raise CheckpointError(
            f"{path} is damaged: the checksum of its record {damaged!r} is wrong; download it again"
        )


class _Vocabulary:
    """Stands in for the class of the repositories: attributes alone."""


class _ForeignCodeError(Exception):
    """A pickle asks for something that a vocabulary does not consist of."""


class _VocabularyUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="utf-8")

    def find_class(self, module: str, name: str) -> Any:
        if name == "Vocabulary":  # of the module vocab, lib.vocab or __main__: only its name is taken
            return _Vocabulary
        raise _ForeignCodeError(f"{module}.{name}")


def _harmless() -> list[Any]:
    """Return what the repositories' checkpoints hold besides tensors and plain values."""
    scalar = np.float64(0).__reduce__()[0]
    dtypes = [type(np.dtype(name)) for name in ("f8", "f4", "i8", "i4", "?")]
    # NumPy moved its function in version 2; a file says where it was when it was written.
    places = [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    return [argparse.Namespace, np.dtype, *places, *dtypes]


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """Make plain values of a tree; ``done`` holds the results by identity, as a pickle may name one part many times."""
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
    """Say in one line what the file asked for; PyTorch's message is a paragraph that names it first."""
    for mark in ("GLOBAL ", "Unsupported class "):
        _, separator, rest = message.partition(mark)
        if separator and (what := rest.split()[0].strip("`.,")):
            return CheckpointError(
                f"{path} wants to run or build {what}, which no checkpoint of the supported repositories needs: "
                f"nothing was run; get the file from its authors, or save its tensors alone"
            )
    return CheckpointError(
        f"{path} is damaged or no checkpoint of PyTorch (it is no pickle of tensors): download it again"
    )


def _no_vocabulary(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is no vocabulary ({reason}): give the .json or .pkl file that the model was trained with"
    )
