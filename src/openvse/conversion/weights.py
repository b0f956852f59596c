"""The weights of a checkpoint: its file, of which no code is run, their names, and checks before they are copied.

Also the files of a published dual encoder, in a folder, on the hub or in its cache.
"""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from openvse.errors import CheckpointError, message_of
from openvse.files import read_json
from openvse.specs.load import parse_yaml
from openvse.training.environment import expect_memory


@dataclass(frozen=True)
class PublishedModel:
    """A dual encoder on the hub: the side of its images in pixels, its millions of parameters, and its width D."""

    source: str
    what: str
    side: int
    millions: int
    width: int
    languages: str
    licence: str


_LISTED = parse_yaml(files("openvse.conversion").joinpath("published.yaml").read_text(encoding="utf-8"))

PUBLISHED = {name: PublishedModel(**fields) for name, fields in _LISTED.items()}
"""The models, with the ones to try first at the top."""


def megabytes_of(name: str) -> int:
    """Return the size of the weights of a published model, or 0 if the name is none of one."""
    return PUBLISHED[name].millions * 4 if name in PUBLISHED else 0


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
        raise CheckpointError(f"{path} is damaged or no checkpoint ({message_of(error)}): download it again") from error


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
        raise CheckpointError(f"{path} is damaged (the checksum of its record {damaged!r} is wrong): download it again")


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


Weights: TypeAlias = dict[str, Tensor]
# The beginning of a name in the file and in openvse. None if the weight has no effect on an embedding.
Names: TypeAlias = Mapping[str, str | None]

NOT_LEARNED = "num_batches_tracked"  # a count of batches, which older versions of PyTorch lack
MAX_LAYERS = 1000  # of one kind, because a file with more names would need far more memory than its size
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def dense_weights(state: Mapping[Any, Any]) -> Weights:
    """Return the tensors of a state dictionary, without the ``module.`` of data-parallel training. None is copied.

    A tensor is refused if it is empty, sparse, quantised or without data, or claims more elements than its storage
    holds, because every operation on it would take more memory than the size of the file suggests.
    """
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    for name, tensor in tensors.items():
        _expect_dense(name, tensor)
    return {".".join(part for part in name.split(".") if part != "module"): t for name, t in tensors.items()}


def _expect_dense(name: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise CheckpointError(
            f"its weights {name!r} are a sparse or quantised tensor, or one without data, which the released code "
            f"does not save: get the file from its authors, or save it again with dense tensors"
        )
    if not tensor.numel():
        raise CheckpointError(f"its weights {name!r} are empty, so the file is incomplete: download it again")
    held = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.numel() > held:
        raise CheckpointError(
            f"its weights {name!r} claim {tensor.numel():,} elements, but the file holds {held:,} of them. It is "
            f"damaged, or made to fill the memory: get it from its authors"
        )


def expect_own_storage(weights: Weights) -> None:
    """Raise CheckpointError if weights share so much storage that copies would take more than the file holds."""
    claimed = sum(weight.numel() * weight.element_size() for weight in weights.values())
    held, counted = 0, 0
    storages = [weight.untyped_storage() for weight in weights.values()]
    for start, stop in sorted((each.data_ptr(), each.data_ptr() + each.nbytes()) for each in storages):
        held += max(0, stop - max(start, counted))
        counted = max(counted, stop)
    if claimed > held:
        raise CheckpointError(
            f"its weights claim {claimed:,} bytes, but the file holds {held:,} of them. Several weights share their "
            f"storage, which the released code does not do: get the file from its authors"
        )


def expect_fit(weights: Weights, wanted: Mapping[str, Tensor]) -> None:
    """Compare weights with the state of a model, maybe on the meta device, by name, shape and number type."""
    shared = wanted.keys() & weights.keys()
    faults = {
        "lacks": [n for n in wanted if n not in weights and not n.endswith(NOT_LEARNED)],
        "has no place for": [n for n in weights if n not in wanted],
        "has other shapes in": [n for n in shared if weights[n].shape != wanted[n].shape],
        "has other types of numbers in": [
            n for n in shared if (weights[n].dtype in REAL) is not wanted[n].is_floating_point()
        ],
    }
    for what, names in faults.items():
        if names:
            name = min(names)
            given = f"{_described(weights[name])} for " if name in weights and name in wanted else ""
            needed = f" ({given}{_described(wanted[name])})" if name in wanted else ""
            raise CheckpointError(
                f"it {what} {len(names)} weights of the model that its options describe, such as {name!r}{needed}: it "
                f"is incomplete, or from a changed copy of the repository"
            )


@torch.no_grad()
def fill(model: nn.Module, weights: Weights) -> None:
    """Copy weights that fit into a model one at a time, so that memory never holds a second copy of all."""
    wanted = model.state_dict()
    expect_fit(weights, wanted)
    for name, weight in weights.items():
        wanted[name].copy_(_single(name, weight) if weight.dtype in REAL else weight)


def _single(name: str, weight: Tensor) -> Tensor:
    single = weight.detach().float()
    bad = single.numel() - int(single.isfinite().sum())
    if bad:
        raise CheckpointError(
            f"{bad:,} of the {single.numel():,} numbers in its weights {name!r} are NaN or infinite. Its training "
            f"diverged, or the file is damaged: take another checkpoint of the run, or download it again"
        )
    return single


def renamed(weights: Weights, names: Names) -> Weights:
    """Rename weights by the longest prefix that fits. Raise CheckpointError if a weight is not in the list."""
    result: Weights = {}
    for name, weight in weights.items():
        prefix = max((begin for begin in names if name.startswith(begin)), key=len, default=None)
        if prefix is None:
            raise CheckpointError(f"it holds weights {name!r}, which the released code lacks: give an unchanged model")
        if (ours := names[prefix]) is not None:
            result[ours + name.removeprefix(prefix)] = weight
    return result


def again(weights: Weights, begin: str, ours: str) -> Weights:
    """Return the weights whose names have a beginning, with another beginning."""
    return {ours + name.removeprefix(begin): w for name, w in weights.items() if name.startswith(begin)}


def shape(weights: Weights, name: str, axes: int) -> tuple[int, ...]:
    """Return the shape of a weight that every checkpoint of the kind has, with so many axes."""
    if name not in weights:
        raise CheckpointError(f"it has no weights {name!r}: the file is incomplete, or of another project")
    sizes = tuple(weights[name].shape)
    if len(sizes) != axes:
        raise CheckpointError(
            f"its weights {name!r} have the shape {sizes}, but must have {axes} axes: the file is of another "
            f"project, or from a changed copy of the repository"
        )
    return sizes


def count(weights: Weights, begin: str) -> int:
    """Return the number of numbered names with a beginning: ``layer.0.``, ``layer.1.``, ..."""
    numbers = {name.removeprefix(begin).partition(".")[0] for name in weights if name.startswith(begin)}
    if len(numbers) > MAX_LAYERS:
        raise CheckpointError(
            f"it names {len(numbers):,} layers {begin!r}, of at most {MAX_LAYERS}: get the file from its authors"
        )
    return len(numbers)


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


OPEN_CLIP_CONFIG = "open_clip_config.json"
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
        raise CheckpointError(f"{index.name} names missing files ({', '.join(missing) or 'no file'}): download all")
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
