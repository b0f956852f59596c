"""The files of a published dual encoder, in a folder, on the hub or in its cache, and its weights.

No code in them is run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from openvse.conversion.checkpoint import read_checkpoint
from openvse.conversion.weights import Weights, dense_weights
from openvse.errors import CheckpointError, message_of
from openvse.files import read_json
from openvse.training.memory import expect_memory

CONFIG, OPEN_CLIP_CONFIG = "config.json", "open_clip_config.json"
INDEX = ".index.json"  # the end of the name of a list of weights in several files
# The first of these files that exists is read.
WEIGHTS = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_SINGLE = 4  # bytes of a number in single precision
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")  # configurations, preprocessing, tokenizers
LARGE = (".safetensors", ".bin")
_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_id(source: str) -> bool:
    """Return whether a name has the form of a hub id, ``owner/name``. A folder of the owner's name may be here."""
    return bool(_ID.fullmatch(source)) and not source.startswith(".")


@dataclass(frozen=True)
class ModelFiles:
    """The files of a published model: in a folder of this machine, or on the hub, where each is fetched when needed.

    For a model of the hub, the folder is the snapshot in the hub's cache with configurations and tokenizer, and
    ``revision`` is the commit. A converted model states ``name``, the hub id or the folder's name, as its source.
    """

    folder: Path
    name: str
    revision: str | None = None

    def find(self, name: str) -> Path | None:
        """Return a file, downloaded if the hub has it and its cache lacks it, or None if there is no such file."""
        there = self.folder / name
        if there.is_file() or self.revision is None:
            return there if there.is_file() else None
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        try:
            self._expect_memory(name)
            return Path(hf_hub_download(self.name, name, revision=self.revision))
        except EntryNotFoundError:
            return None  # the model does not have it, or the cache lacks it and the hub cannot be reached
        except CheckpointError:
            raise
        except Exception as error:  # the hub's client fails in many ways
            raise _unreachable(self.name, error) from error

    def _expect_memory(self, name: str) -> None:
        """Raise CheckpointError if the hub states that the weights exceed this machine's memory."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.constants import HF_HUB_OFFLINE

        if HF_HUB_OFFLINE or not name.endswith(LARGE):
            return
        try:
            size = get_hf_file_metadata(hf_hub_url(self.name, name, revision=self.revision)).size
        except Exception:  # the download itself finds out why
            return
        expect_memory(size or 0, f"the weights of {self.name}")


def open_model(source: str) -> ModelFiles:
    """Find a model: a folder of this machine, or a hub model, whose configurations and tokenizer are downloaded."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return ModelFiles(folder, folder.resolve().name)
    from huggingface_hub import snapshot_download

    try:
        snapshot = Path(snapshot_download(source, allow_patterns=list(SMALL_FILES)))
    except Exception as error:  # the hub's client fails in many ways
        raise _unreachable(source, error) from error
    return ModelFiles(snapshot, source, snapshot.name)


def _unreachable(repo_id: str, error: Exception) -> CheckpointError:
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return CheckpointError(
            f"{repo_id} can only be downloaded after you accept its terms: accept them on its page, run "
            f"'hf auth login', and try again"
        )
    if isinstance(error, RepositoryNotFoundError):
        return CheckpointError(f"{repo_id} is neither a folder nor a public model of the hub: check the name")
    reason = "" if isinstance(error, LocalEntryNotFoundError) else f" ({message_of(error)})"
    return CheckpointError(
        f"{repo_id} is no folder and not in the hub's cache ({HF_HUB_CACHE}), and the hub cannot be reached{reason}: "
        f"on a machine with access run 'hf download {repo_id} --local-dir FOLDER', copy the folder here, and run "
        f"'openvse convert FOLDER MODEL'"
    )


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file. Raise CheckpointError if the file cannot be read, or is not a mapping."""
    try:
        tree = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.name} cannot be read ({error}): download it again") from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path.name} is not a mapping: download it again")
    return tree


def _parts(place: ModelFiles, index: Path) -> list[Path]:
    """Return the files that a list of weights names."""
    listed = read_mapping(index).get("weight_map")
    names = sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []
    paths = {name: place.find(name) if Path(name).name == name else None for name in names}
    if (missing := [name for name, path in paths.items() if path is None]) or not names:
        raise CheckpointError(
            f"{index.name} names weights that are missing ({', '.join(missing) or 'no file'}): download all files"
        )
    return [path for path in paths.values() if path is not None]


def read_dual_weights(place: ModelFiles, names: tuple[str, ...]) -> Weights:
    """Read all parts of the first file that exists. Weights are mapped, so that each takes memory only once used."""
    if (path := next(filter(None, map(place.find, names)), None)) is None:
        raise CheckpointError(f"it holds no weights (none of {', '.join(names)}): download all of its files")
    weights: Weights = {}
    for part in _parts(place, path) if path.name.endswith(INDEX) else [path]:
        weights |= dense_weights(_read(part))
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
