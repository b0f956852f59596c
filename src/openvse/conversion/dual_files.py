"""The files of a published dual encoder, in a folder or on the hub, and its weights; no code in them is run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from openvse.conversion.checkpoint_file import read_checkpoint
from openvse.conversion.hub import HubFolder
from openvse.conversion.memory import expect_memory
from openvse.conversion.weights import Weights, dense_weights
from openvse.errors import CheckpointError

CONFIG, OPEN_CLIP_CONFIG = "config.json", "open_clip_config.json"
INDEX = ".index.json"  # the end of the name of a list of weights in several files
# The first of these files that exists is read.
WEIGHTS = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_SINGLE = 4  # bytes of a number in single precision


@dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine with the files of a published model.

    Attributes:
        folder: the path of the folder.
        name: the name of the folder, which a converted model states as its source.
        revision: None, because the revision is not known.
    """

    folder: Path
    name: str
    revision: str | None = None

    def find(self, name: str) -> Path | None:
        """Return a file of the folder, or None if it has no file of this name."""
        path = self.folder / name
        return path if path.is_file() else None


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file.

    Raises:
        CheckpointError: the file cannot be read, or is not a mapping.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.name} cannot be read ({error}): download it again") from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path.name} is not a mapping: download it again")
    return tree


def find_weights(place: LocalFolder | HubFolder, names: tuple[str, ...]) -> list[Path]:
    """Return the files of the weights: all parts of the first of these names that exists.

    Raises:
        CheckpointError: none of these files exists, or a part is missing.
    """
    for name in names:
        path = place.find(name)
        if path is None:
            continue
        return _parts(place, path) if name.endswith(INDEX) else [path]
    raise CheckpointError(f"it holds no weights (none of {', '.join(names)}): download all of its files")


def _parts(place: LocalFolder | HubFolder, index: Path) -> list[Path]:
    listed = read_json(index).get("weight_map")
    names = sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []
    paths = [(name, place.find(name)) for name in names if Path(name).name == name]
    missing = [name for name, path in paths if path is None]
    if missing or len(paths) < max(1, len(names)):
        raise CheckpointError(
            f"{index.name} names weights that are missing ({', '.join(missing) or 'no file'}): download all files"
        )
    return [path for _, path in paths if path is not None]


def read_weights(paths: list[Path]) -> Weights:
    """Read weights; they are memory-mapped, so that each takes memory only when it is used.

    Raises:
        CheckpointError: a file is damaged or wants to run code, or the weights exceed this machine's memory.
    """
    weights: Weights = {}
    for path in paths:
        weights |= dense_weights(_read(path))
    numbers = sum(weight.numel() for weight in weights.values())
    expect_memory(_SINGLE * numbers, f"its {numbers:,} weights, in single precision,")
    return weights


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        tree = read_checkpoint(path)
        whole = tree.get("state_dict", tree) if isinstance(tree, dict) else {}
        return whole if isinstance(whole, dict) else {}
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path.name} is damaged or incomplete ({error}): download it again") from error
