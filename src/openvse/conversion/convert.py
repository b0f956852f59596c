"""The conversion of a released checkpoint or a published dual encoder to a model folder, once for each short name."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from openvse.conversion.dual_encoders import convert_dual
from openvse.conversion.dual_files import is_hub_id, open_model
from openvse.conversion.published import PUBLISHED
from openvse.errors import CheckpointError, ModelError
from openvse.files import is_free, locked, settle, user_cache
from openvse.model.folder import CONFIG
from openvse.model.two_tower import TwoTower
from openvse.registry import Registry

CACHE_VARIABLE = "OPENVSE_CACHE"
"""The environment variable that sets another folder for converted models."""


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion. ``repository`` is where the code of the checkpoint is, or its architecture."""

    repository: str
    model: TwoTower
    notes: tuple[str, ...]


@runtime_checkable
class Converter(Protocol):
    """A function that converts checkpoints of other code. An installed package adds one as ``converter.NAME``."""

    def __call__(
        self, path: Path, vocabulary: str | None, repository: str | None, overrides: Sequence[str], /
    ) -> Conversion:
        """Return the model of a file. Raise CheckpointError if it is of other code, damaged or has no counterpart.

        Args:
            vocabulary: the file of the model's words, or the tokenizer of its text model.
            repository: the name of the code, or None to recognise it by the weights.
            overrides: settings that the file does not contain, as ``key.path=value``.
        """
        ...


CONVERTERS: Registry[Conversion] = Registry("converter", {})


def convert(
    checkpoint: str | Path,
    out: str | Path,
    *,
    vocabulary: str | Path | None = None,
    repository: str | None = None,
    overrides: Sequence[str] = (),
) -> Conversion:
    """Convert a checkpoint of VSE-infinity, PVSE or VSE+2AD, or a dual encoder, to a model folder of equal embeddings.

    No code in the files is run. Checksums, options, names, shapes and number types are verified before a weight is
    copied. The folder appears only when it is complete: every weight has its place and is finite.

    Args:
        checkpoint: the file that the training of a repository saved, or a dual encoder of ``transformers`` or OpenCLIP:
            a folder with its files, a hub id, or a short name of ``PUBLISHED``.
        out: the model folder. It must be empty or not exist.
        vocabulary: the file of the model's words in training, or the tokenizer of its text model. A dual encoder brings
            its own.
        repository: vse_infinity, pvse, vse_2ad or esa. None recognises the repository by the weights.
        overrides: settings of the recipe that a file does not contain, as ``key.path=value``.

    Raises:
        CheckpointError: the file cannot be read, is damaged, belongs to another project, holds numbers that are not
            finite or options that are not plausible, or cannot be represented in openvse.
        RecipeError: an override is not of the form ``key.path=value``.
    """
    folder = Path(out)
    if not is_free(folder, CONFIG):
        raise CheckpointError(f"{folder} exists: choose a new folder for the model")
    source = PUBLISHED[str(checkpoint)].source if str(checkpoint) in PUBLISHED else str(checkpoint)
    path, words = Path(source), None if vocabulary is None else str(vocabulary)
    try:
        if repository is None and (path.is_dir() or (not path.exists() and is_hub_id(source))):
            done = Conversion(*convert_dual(open_model(source), tokenizer=words, overrides=overrides), ())
        else:
            done = _convert_released(path, words, repository, overrides)
    except (CheckpointError, ModelError) as error:  # the latter if a part of the model cannot be loaded
        raise CheckpointError(str(error) if source in str(error) else f"{source}: {error}") from error
    done.model.save(folder)
    return done


def published_folder(name: str) -> Path | None:
    """Return the model folder of a short name, which the first call converts, or None for any other name."""
    if name not in PUBLISHED:
        return None
    cache = Path(os.environ.get(CACHE_VARIABLE) or user_cache()).expanduser()
    folder = cache / "models" / name / "model"
    if settle(folder, CONFIG):
        return folder
    source = PUBLISHED[name].source
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent, "converted model", ModelError):
        if not settle(folder, CONFIG):
            _logger.warning("%s: %s is converted once, into %s", name, source, folder)
            try:
                convert(source, folder)
            except CheckpointError as error:
                raise ModelError(f"{name} is {source}, which cannot be used: {error}") from error
    return folder


def _convert_released(
    path: Path, vocabulary: str | None, repository: str | None, overrides: Sequence[str]
) -> Conversion:
    """Return the result of the first converter that knows a file."""
    reasons = []
    for name in CONVERTERS:
        try:
            return CONVERTERS.get(name)(path, vocabulary, repository, overrides)
        except CheckpointError as error:
            reasons.append(str(error))
    raise CheckpointError("; ".join(reasons))
