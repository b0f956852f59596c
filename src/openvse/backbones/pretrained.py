"""Checkpoints of the ``transformers`` library: where they come from, how they load, how they are named."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from openvse.backbones.installed import model_source
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
    except (OSError, ValueError, KeyError, ImportError) as error:
        if isinstance(error, ImportError) and "sentencepiece" in str(error).lower():
            raise ModelError(
                f"cannot load {what} of {str(source)!r} without SentencePiece: run pip install 'openvse[siglip]'"
            ) from error
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"cannot load {what} of {str(source)!r} ({reason}): give a hub id or a folder of "
            f"transformers, or package:NAME of an installed package that holds it"
        ) from error


def load_backbone(source: str | Path, *, weights: bool, tower: str) -> nn.Module:
    """Return the base model of a checkpoint in single precision and evaluation mode.

    Args:
        source: hub id, folder, or ``package:NAME`` of an installed package.
        weights: read the weights; otherwise only the architecture is built, for weights that follow.
        tower: what ``transformers`` calls this side of a model of two modalities, ``vision_model`` or
            ``text_model``: of CLIP, SigLIP and their kin it alone is returned.
    """
    from transformers import AutoConfig, AutoModel

    place = model_source(source)

    def load() -> nn.Module:
        with _bars_on_terminals_only():
            whole: Any = (
                AutoModel.from_pretrained(place) if weights else _build(AutoConfig.from_pretrained(place))
            )
        backbone = getattr(whole, tower, whole)
        if backbone is not whole:
            # A tower's configuration knows neither the commit of its checkpoint nor its own class.
            backbone.config._commit_hash = getattr(whole.config, "_commit_hash", None)
            backbone.config.architectures = [type(backbone).__name__]
        # Checkpoints stored in half precision would otherwise load so; autocast is the trainer's choice.
        single: nn.Module = backbone.float().eval()
        return single

    return load_or_explain(load, what="the model", source=source)


@contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    """Keep the progress bars of ``transformers`` out of logs and pipes."""
    from transformers.utils import logging

    hidden = not sys.stderr.isatty() and logging.is_progress_bar_enabled()
    if hidden:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hidden:
            logging.enable_progress_bar()


def _build(config: Any) -> Any:
    """Build a model with random weights; some towers have a class, but none that AutoModel knows."""
    import transformers

    if type(config) in transformers.MODEL_MAPPING:
        return transformers.AutoModel.from_config(config)
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ValueError(f"transformers has no base model of type {config.model_type}")
    # Its class adds a pooling layer that Chinese-CLIP, of which it is a part, does without.
    pooler = {"add_pooling_layer": False} if config.model_type == "chinese_clip_text_model" else {}
    return kind(config, **pooler)


def identify(source: str, config: Any) -> str:
    """Name a checkpoint so that other weights or another preprocessing have another name.

    Args:
        source: hub id, folder, or ``package:NAME`` of an installed package.
        config: the loaded checkpoint's configuration.

    Returns:
        ``id@commit`` for the hub, ``model_type@digest of the files`` for a folder or package, wherever it lies.
    """
    folder = Path(model_source(source))
    if not folder.is_dir():
        return f"{source}@{str(config._commit_hash)[:12]}"
    digest = hashlib.sha256()
    for pattern in _CONTENT:
        for path in sorted(folder.glob(pattern)):
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
    return f"{config.model_type}@{digest.hexdigest()[:12]}"
