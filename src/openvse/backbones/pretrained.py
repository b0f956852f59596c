"""Checkpoints of the ``transformers`` library: their places, loading, and names."""

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
_CHUNK = 1 << 20  # number of bytes that are read at once for a digest
_CONTENT = (
    "*.safetensors",
    "*.bin",
    "preprocessor_config.json",
    "processor_config.json",
)  # the files that determine features


def load_or_explain(load: Callable[[], LoadedT], *, what: str, source: str | Path) -> LoadedT:
    """Call a loader of ``transformers``, and turn its failure into an error of one line.

    Raises:
        ModelError: the source does not exist, cannot be reached, or does not hold what is loaded.
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
            f"transformers, or package:NAME of an installed package with it"
        ) from error


def load_backbone(source: str | Path, *, weights: bool, tower: str) -> nn.Module:
    """Return the base model of a checkpoint in single precision and evaluation mode.

    Args:
        source: a hub id, a folder, or ``package:NAME`` of an installed package.
        weights: whether to read the weights; otherwise only the architecture is built, and the caller loads weights.
        tower: the attribute of ``transformers`` for one side of a model of two modalities, ``vision_model`` or
            ``text_model``; for CLIP, SigLIP and related models, only this tower is returned.
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
        # Checkpoints in half precision would stay so; the trainer decides on autocast.
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
    """Build a model with random weights; AutoModel does not know the classes of some towers."""
    import transformers

    if type(config) in transformers.MODEL_MAPPING:
        return transformers.AutoModel.from_config(config)
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ValueError(f"transformers has no base model of type {config.model_type}")
    # The class adds a pooling layer by default, which Chinese-CLIP does not use.
    pooler = {"add_pooling_layer": False} if config.model_type == "chinese_clip_text_model" else {}
    return kind(config, **pooler)


def identify(source: str, config: Any) -> str:
    """Return a name for a checkpoint, which differs for other weights or another preprocessing.

    Args:
        source: a hub id, a folder, or ``package:NAME`` of an installed package.
        config: the configuration of the loaded checkpoint.

    Returns:
        ``id@commit`` for the hub; ``model_type@digest of the files`` for a folder or package, independent of its place.
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
