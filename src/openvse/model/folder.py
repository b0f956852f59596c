"""A model on disk: config.json, model.safetensors and the encoders' assets. No pickle is ever read from it.

``config.json`` of format 2 holds ``library_name``, ``format_version``, ``task``, the model's spec under ``model``, and
``provenance``, which is not checked: the version of openvse, the recipe's name, the data set with the number of images
in each split, the results on validation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from openvse import __version__
from openvse.errors import ModelError
from openvse.files import replacing_files
from openvse.specs import ModelSpec

FORMAT_VERSION = 2
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class ModelConfig:
    """The description of a model in its folder.

    Attributes:
        task: a name in the registry of tasks.
        spec: the parts of the model, not checked yet.
        provenance: the origin of the model.
    """

    task: str
    spec: Mapping[str, Any]
    provenance: Mapping[str, Any]


def write_folder(
    folder: Path,
    modules: nn.Module,
    *,
    task: str,
    spec: ModelSpec,
    provenance: Mapping[str, Any],
    assets: Callable[[Path], None],
) -> Path:
    """Write a model folder: new files are written next to the old ones and then renamed, the weights last.

    Args:
        folder: the folder, which is created if it is missing.
        modules: the model, whose weights are written.
        task: a name in the registry of tasks.
        spec: the parts of the model; paths of this machine are cut to their last name.
        provenance: the origin of the model.
        assets: the function that writes the files needed besides the weights.

    Raises:
        DiskError: the disk is full or cannot be written to; the old files are complete.
    """
    config = {
        "library_name": "openvse",
        "format_version": FORMAT_VERSION,
        "task": task,
        "model": spec.portable().model_dump(mode="json"),
        "provenance": {"openvse": __version__, **provenance},
    }
    with replacing_files(folder, last=(CONFIG, WEIGHTS)) as partial:
        assets(partial)
        (partial / CONFIG).write_text(json.dumps(config, indent=2, default=str) + "\n", encoding="utf-8")
        save_model(modules, str(partial / WEIGHTS))
    return folder


def read_config(folder: Path) -> ModelConfig:
    """Return the description of a model from its folder.

    Raises:
        ModelError: the folder has no model, is incomplete, or has another format.
    """
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(
                f"{folder} is not a model folder: it has no {name} (train one, or name a finished run's best/)"
            )
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        version = config["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, KeyError) and "model_type" in config:
            raise ModelError(
                f"{folder} is a checkpoint of transformers: run 'openvse convert {folder} MODEL' and name MODEL, or "
                f"name {folder} in a recipe as a tower's model"
            ) from error
        raise ModelError(f"{folder / CONFIG} is damaged ({error}): save the model again") from error
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{folder} has model format {version}, this openvse ({__version__}) reads {FORMAT_VERSION}: update "
            f"openvse, or train or convert the model again"
        )
    tree, provenance = config.get("model"), config.get("provenance")
    if not isinstance(tree, dict):
        raise ModelError(f"{folder / CONFIG} does not say what the model is made of: save the model again")
    return ModelConfig(str(config.get("task")), tree, provenance if isinstance(provenance, dict) else {})


def read_weights(modules: nn.Module, folder: Path) -> None:
    """Load the weights into a model with the same spec.

    Raises:
        ModelError: the file is truncated, or its tensors are not those of this model.
    """
    try:
        load_model(modules, str(folder / WEIGHTS))
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{folder / WEIGHTS} cannot be read ({error}): copy or save the model again"
        ) from error
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{folder / WEIGHTS} does not fit its config.json: {reason}") from error
