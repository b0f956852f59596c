"""Checkpoints of PyTorch: reading their files. No code in a file is run."""

from __future__ import annotations

import argparse
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openvse.errors import CheckpointError, message_of


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
