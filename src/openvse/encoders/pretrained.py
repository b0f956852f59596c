"""Checkpoints of the ``transformers`` library: where they come from, how they load, how they are named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from openvse.errors import ModelError

LoadedT = TypeVar("LoadedT")
_CHUNK = 1 << 20  # bytes read at once while hashing
_CONTENT = (
    "*.safetensors",
    "*.bin",
    "preprocessor_config.json",
    "processor_config.json",
)  # what decides features


def load_or_explain(load: Callable[[], LoadedT], *, what: str, source: str | Path) -> LoadedT:
    """Call a loader of ``transformers`` and turn its failure into one line.

    Raises:
        ModelError: the source does not exist, cannot be reached, or does not hold what is asked for.
    """
    try:
        return load()
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"cannot load {what} of {str(source)!r} ({reason}): give a hub id or a folder of transformers"
        ) from error


def load_backbone(source: str | Path, *, weights: bool) -> nn.Module:
    """Return the base model of a checkpoint in single precision and evaluation mode.

    Args:
        source: hub id or folder.
        weights: read the weights; otherwise only the architecture is built, for weights that follow.
    """
    from transformers import AutoConfig, AutoModel

    def load() -> nn.Module:
        if weights:
            backbone: nn.Module = AutoModel.from_pretrained(source)
        else:
            backbone = AutoModel.from_config(AutoConfig.from_pretrained(source))
        # Checkpoints stored in half precision would otherwise load so; autocast is the trainer's choice.
        return backbone.float().eval()

    return load_or_explain(load, what="the model", source=source)


def identify(source: str, config: Any) -> str:
    """Name a checkpoint so that other weights or another preprocessing have another name.

    Args:
        source: hub id or folder.
        config: the loaded checkpoint's configuration.

    Returns:
        ``id@commit`` for the hub, ``model_type@digest of the files`` for a folder, wherever it lies.
    """
    folder = Path(source)
    if not folder.is_dir():
        return f"{source}@{str(config._commit_hash)[:12]}"
    digest = hashlib.sha256()
    for pattern in _CONTENT:
        for path in sorted(folder.glob(pattern)):
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
    return f"{config.model_type}@{digest.hexdigest()[:12]}"
