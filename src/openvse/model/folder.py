"""A model on disk: config.json, model.safetensors, the encoders' assets, and its card. No pickle is ever read from it.

``config.json`` of format 2 holds ``library_name``, ``format_version``, ``task``, the model's spec under ``model``, and
``provenance``, which is not checked: the version of openvse, the recipe's name, the data set with the number of images
in each split, the results on validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_model, save_file
from torch import Tensor, nn

from openvse import __version__
from openvse.errors import ModelError, message_of
from openvse.files import read_json
from openvse.output.table import Table
from openvse.runtime.model import is_export
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
