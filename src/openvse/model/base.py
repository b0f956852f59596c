"""The base of every model, which has modules, the spec that builds them, a folder and a fingerprint."""

from __future__ import annotations

import hashlib
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_file
from torch import Tensor, nn

from openvse import __version__
from openvse.backbones.fine_tuning import without_adapters
from openvse.errors import ModelError, message_of
from openvse.files import read_json, replacing_files, write_whole
from openvse.output.table import Table
from openvse.runtime.model import is_export
from openvse.scoring.calibration import CALIBRATION
from openvse.scoring.hubs import BANK
from openvse.specs.load import dump_yaml
from openvse.specs.model import ModelSpec, section

FORMAT_VERSION = 2
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"

_USE = {
    "retrieval": """model = openvse.load("{name}")
scores = model.score(model.encode_image(["a.jpg"]), model.encode_text(["a dog on a beach"]))""",
    "vqa": """model = openvse.load("{name}")
print(model.ask("kitchen.jpg", ["how many chairs are there?"], top_k=3))""",
}
_LIMITS = (
    "It has seen only the words and the kinds of images of its training data. It repeats the gaps and the errors of "
    "these data.",
    "Scores order the candidates of one query. They are not probabilities and do not compare across models.",
    "The licence of the training data, where there is one, is stated above. The weights come with no other promise.",
)


@dataclass(frozen=True)
class ModelConfig:
    """The description of a model in its folder, with an unchecked spec and provenance."""

    task: str
    spec: Mapping[str, Any]
    provenance: Mapping[str, Any]


def read_config(folder: Path) -> ModelConfig:
    """Read the description of a model. Raise ModelError if it is missing, incomplete, or of another format."""
    if is_export(folder):
        raise ModelError(f"{folder} is an exported model: open it with openvse.open, or name the model itself")
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(f"{folder} is not a model folder: it has no {name} (train one, or name a run's best/)")
    try:
        config = read_json(folder / CONFIG)
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
            f"{folder} has model format {version}, but this openvse ({__version__}) reads {FORMAT_VERSION}: update "
            f"openvse, or train or convert the model again"
        )
    tree, provenance = config.get("model"), config.get("provenance")
    if not isinstance(tree, dict):
        raise ModelError(f"{folder / CONFIG} does not name the parts of the model: save the model again")
    return ModelConfig(str(config.get("task")), tree, provenance if isinstance(provenance, dict) else {})


def write_weights(module: nn.Module, path: Path) -> None:
    """Write the weights of a module. A weight with several names is written once.

    Each is copied by itself: on a GPU, the weights of a GRU are parts of one piece of memory.
    """
    names: dict[tuple[int, ...], str] = {}
    weights, other_names = dict[str, Tensor](), dict[str, str]()
    for name, weight in sorted(module.state_dict().items()):
        place = (weight.data_ptr(), *weight.shape, *weight.stride()) if weight.numel() else (len(names),)
        if (first := names.setdefault(place, name)) != name:
            other_names[name] = first
        else:
            alone = weight.untyped_storage().nbytes() == weight.nbytes
            weights[name] = (weight.cpu() if alone else weight.cpu().clone()).contiguous()
    save_file(weights, str(path), other_names or None)


def read_weights(modules: nn.Module, folder: Path) -> None:
    """Load weights into a model. Raise ModelError if the file is truncated, or its tensors do not fit."""
    try:
        load_model(modules, str(folder / WEIGHTS))
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{folder / WEIGHTS} cannot be read ({error}): copy or save the model again") from error
    except RuntimeError as error:
        raise ModelError(f"{folder / WEIGHTS} does not fit its config.json: {message_of(error)}") from error


def model_card(name: str, task: str, spec: ModelSpec, provenance: Mapping[str, Any]) -> str:
    """Return a model card in Markdown: the training data of the model, its results, how to load it, its limits.

    The provenance is not checked, so entries that are missing or malformed are left out.
    """
    header = dump_yaml({"library_name": "openvse", "tags": ["openvse", "visual-semantic-embedding", task]})
    use = _USE.get(task, 'model = openvse.load("{name}")').format(name=name)
    sections = [
        f"# {name}",
        str(provenance.get("description") or "") or f"A model for {task}, trained with openvse.",
        f"## Parts\n\n{_parts(spec)}",
        _training(provenance),
        _figures(provenance.get("validation")),
        f"## Use\n\n```python\nimport openvse\n\n{use}\n```",
        "## Limits\n\n" + "\n".join(f"- {limit}" for limit in _LIMITS),
    ]
    return f"---\n{header}---\n\n" + "\n\n".join(filter(None, sections)) + "\n"


def _parts(spec: ModelSpec) -> str:
    sides = {"Images": spec.image, "Sentences": spec.text}
    lines = [
        f"- {side}: encoder `{tower.encoder.name}`, aggregator `{tower.aggregator.name}`"
        for side, tower in sides.items()
        if tower is not None
    ]
    return "\n".join([*lines, f"- Joint width: {spec.embed_dim}"])


def _training(provenance: Mapping[str, Any]) -> str:
    lines = []
    if provenance.get("recipe"):
        lines.append(f"- Recipe: `{provenance['recipe']}`, seed {provenance.get('seed', 0)}")
    data = provenance.get("data")
    if isinstance(data, Mapping):
        counts = ", ".join(f"{n} {split}" for split, n in section(data, "splits").items())
        lines.append(f"- Data: {data.get('name', 'not stated')}" + (f" ({counts})" if counts else ""))
        if data.get("licence"):
            lines.append(f"- Terms of the data: {data['licence']}")
    lines.append(f"- openvse {provenance.get('openvse', 'of an unknown version')}")
    return "## Training\n\n" + "\n".join(lines)


def _figures(validation: Any) -> str:
    """Return a table of the validation results with their intervals, empty if there are none."""
    if not (metrics := section(validation, "metrics")):
        return ""
    intervals = section(validation, "intervals")
    rows = [[name, f"{value:.1f}", _interval(intervals.get(name))] for name, value in metrics.items()]
    table = Table(["metric", "validation", "95 % interval"], rows).to_markdown()
    epoch = validation.get("epoch", "not stated")
    return f"## Figures\n\nOn the validation split, which selected the model (epoch {epoch}).\n\n{table}"


def _interval(bounds: Any) -> str:
    is_pair = isinstance(bounds, Sequence) and len(bounds) == 2
    return f"{bounds[0]:.1f} to {bounds[1]:.1f}" if is_pair else ""


_fingerprints: WeakKeyDictionary[Model, tuple[object, str]] = WeakKeyDictionary()
"""The last fingerprint of each model, with the state of its weights."""


class Model(nn.Module, ABC):
    """A model of any task.

    Args:
        spec: the parts of the model. None derives it from the modules (see ``describe``).
        provenance: the origin of the model (the recipe's name, the data set, results on validation), for people and for
            reports. It is not checked, and is written into the model folder.

    Attributes:
        task: a name in the registry of tasks.
        purpose: the use of the model, as the end of a sentence that begins with its name.
        source: the folder or hub id from which it was loaded, or "" for a model made here.
    """

    task: ClassVar[str]
    purpose: ClassVar[str]

    def __init__(self, spec: ModelSpec | None, provenance: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._spec = spec
        self.provenance = dict(provenance or {})
        self.source = ""

    @property
    def spec(self) -> ModelSpec:
        """The parts of the model. Raise ModelError if the model has parts that a recipe cannot name."""
        if self._spec is None:
            self._spec = self.describe()
        return self._spec

    @abstractmethod
    def describe(self) -> ModelSpec:
        """Derive the spec from the parts, for a model made without one.

        Raises:
            ModelError: a part is not registered, or was made for widths that a build would not give it.
        """

    @abstractmethod
    def save_assets(self, folder: Path) -> None:
        """Write the files needed besides the weights (vocabularies, a backbone's config) into the model folder."""

    def read_more(self, folder: Path) -> None:
        """Read the other content of the model folder, after parts and weights. By default nothing."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def fingerprint(self) -> str:
        """A hash of the weights and the spec. An index stores the hash of the model that made it.

        It is kept until the weights change.
        """
        identity = json.dumps(self.spec.identity(), sort_keys=True)
        state = identity, [(name, *_changes(each)) for name, each in self.state_dict(keep_vars=True).items()]
        if (known := _fingerprints.get(self)) is not None and known[0] == state:
            return known[1]
        digest = hashlib.sha256(identity.encode())
        for name, weight in sorted(without_adapters(self).state_dict().items()):
            digest.update(name.encode())
            digest.update(_bytes_of(weight).cpu().numpy().data)
        _fingerprints[self] = state, digest.hexdigest()[:16]
        return _fingerprints[self][1]

    def save(self, folder: str | Path, *, alone: bool = False) -> Path:
        """Write the model folder: config.json, model.safetensors and the files that the encoders need.

        The new files replace an earlier model's files all at once. Adapters are merged into the weights, and paths of
        this machine are cut to their last name.

        Args:
            alone: remove all other files of the folder.

        Raises:
            DiskError: the disk is full or cannot be written to. The old files are complete.
        """
        config = {
            "library_name": "openvse",
            "format_version": FORMAT_VERSION,
            "task": self.task,
            "model": self.spec.portable().model_dump(mode="json"),
            "provenance": {"openvse": __version__, **self.provenance},
        }
        there = [path.name for path in Path(folder).glob("[!.]*")]
        with replacing_files(Path(folder), CONFIG, there if alone else [CALIBRATION, BANK]) as partial:
            self.save_assets(partial)
            (partial / CONFIG).write_text(json.dumps(config, indent=2, default=str) + "\n", encoding="utf-8")
            write_weights(without_adapters(self), partial / WEIGHTS)
        return Path(folder)

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload the model folder and a model card to the Hugging Face hub, and return the address."""
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            folder = self.save(temporary)
            write_whole(folder / CARD, model_card(repo_id, self.task, self.spec, self.provenance))
            return str(api.upload_folder(repo_id=repo_id, folder_path=folder))


def _bytes_of(weight: Tensor) -> Tensor:
    return weight.detach().contiguous().flatten().view(torch.uint8)


def _changes(weight: Tensor) -> tuple[object, ...]:
    """Return a value that changes with any weight, in a tenth of the time of a hash.

    For autograd, fused optimizers and writes to ``weight.data`` are no changes, so its version alone is not enough.
    """
    content = _bytes_of(weight)
    if content.storage_offset() % 8:
        content = content.clone()
    whole = len(content) // 8 * 8
    total = int(content[:whole].view(torch.int64).sum()) + int(content[whole:].sum())
    version = None if weight.is_inference() else weight._version
    return weight.shape, weight.dtype, version, total
