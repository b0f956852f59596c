"""A model on disk: config.json, model.safetensors and the encoders' assets. No pickle is ever read from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model

from openvse.errors import ModelError
from openvse.files import replacing, write_whole

if TYPE_CHECKING:
    from openvse.model.base import Model

FORMAT_VERSION = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def write_model(model: Model, folder: Path) -> Path:
    """Write a model folder; the weights appear last and by rename, so what was there stays whole until then."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_assets(folder)
    config = {"library_name": "openvse", "format_version": FORMAT_VERSION, "recipe": model.config}
    write_whole(folder / CONFIG, json.dumps(config, indent=2, default=str) + "\n")
    with replacing(folder / WEIGHTS) as partial:
        save_model(model, str(partial))
    return folder


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return the recipe that a model folder was built from.

    Raises:
        ModelError: the folder is no model, is incomplete, or comes from a newer openvse.
    """
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(
                f"{folder} is no model folder: it has no {name} (train one, or name a finished run's best/)"
            )
    try:
        config = json.loads((folder / CONFIG).read_text())
        version, recipe = config["format_version"], config["recipe"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / CONFIG} is damaged ({error}): save the model again") from error
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{folder} has model format {version}, this openvse reads {FORMAT_VERSION}: update openvse"
        )
    if not isinstance(recipe, dict):
        raise ModelError(f"{folder / CONFIG} holds no recipe: save the model again")
    return recipe


def read_weights(model: Model, folder: Path) -> None:
    """Load the weights into a model of the same recipe.

    Raises:
        ModelError: the file is truncated, or its tensors are not this model's.
    """
    try:
        load_model(model, str(folder / WEIGHTS))
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{folder / WEIGHTS} cannot be read ({error}): copy or save the model again"
        ) from error
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{folder / WEIGHTS} does not fit its config.json: {reason}") from error
