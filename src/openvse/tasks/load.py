"""A model from its folder, or from the hub."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import torch
from pydantic import ValidationError

from openvse.conversion.convert import published_folder
from openvse.conversion.weights import PUBLISHED, is_hub_id
from openvse.errors import ModelError, message_of, nearest
from openvse.files import check_same, given_path, read_json, settle
from openvse.halves import usable_device
from openvse.model.base import CONFIG, WEIGHTS, Model, read_config, read_weights
from openvse.model.two_tower import TwoTower
from openvse.specs.load import describe
from openvse.tasks import TASKS, task_kind
from openvse.training.environment import expect_memory

ModelT = TypeVar("ModelT", bound=Model)


def load(source: str | Path, *, device: str | torch.device = "cpu", revision: str | None = None) -> Model:
    """Load a model folder, the best model of a run, or a model from the Hugging Face hub, ready to use.

    Args:
        source: the folder of a model or of a run, the short name of a published dual encoder, such as ``clip-b32``,
            which is converted the first time, or a hub id of a model that openvse saved, such as
            ``someone/flickr30k-vse-infinity``.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or another device of PyTorch, or ``auto``, the fastest one.
        revision: a branch, tag or commit on the hub.

    Returns:
        The model, of any task: a ``TwoTower``, or an ``Answerer`` if it was trained to answer questions.

    Raises:
        ModelError: there is no such folder or hub id, it is damaged, or it has another format.
        OpenVSEError: the device cannot be used here.
    """
    device = usable_device(device)
    folder = folder_of_model(source, revision=revision)
    found = settle(folder, CONFIG)
    config = read_config(folder)
    expect_memory((folder / WEIGHTS).stat().st_size, f"the weights of {folder}", ModelError)
    if config.task not in TASKS:
        raise ModelError(
            f"{folder / CONFIG}: the model is for the task {config.task!r}{nearest(config.task, TASKS.names())}, which "
            f"this openvse does not know ({', '.join(TASKS)}): update openvse, or give the --plugin that has it"
        )
    kind = task_kind(config.task)
    try:
        model = kind.build(config.spec, folder)
    except ValidationError as error:
        reason = describe(error, kind.spec)
        raise ModelError(f"{folder / CONFIG} does not describe a model ({reason}): save the model again") from error
    read_weights(model, folder)
    model.provenance = dict(config.provenance)
    model.read_more(folder)
    check_same(folder, CONFIG, found)
    model.source = str(folder if Path(source).exists() else source)
    return model.to(device).eval()


def folder_of_model(source: str | Path, *, revision: str | None = None) -> Path:
    """Return the folder of a model, or of a run's best model. It may have to be downloaded or converted first."""
    folder = given_path(source, "the model")
    if not folder.exists():
        return published_folder(str(source)) or _download(str(source), revision)
    best = folder / "best"
    return best if not settle(folder, CONFIG) and settle(best, CONFIG) else folder


def load_as(kind: type[ModelT], source: str | Path, *, device: str | torch.device = "cpu") -> ModelT:
    """Load a model of a certain kind, such as ``TwoTower``. See ``load``."""
    model = load(source, device=device)
    if not isinstance(model, kind):
        raise ModelError(
            f"{source} {model.purpose}, but this needs a model that {kind.purpose}: name one of the task {kind.task}"
        )
    return model


def load_two_tower(source: str | Path, *, device: str | torch.device = "cpu") -> TwoTower:
    """Load a model that embeds images and sentences. See ``load``."""
    return load_as(TwoTower, source, device=device)


def load_same(source: str, fingerprint: str, device: str) -> TwoTower:
    """Load the two-tower model in a worker. Raise ModelError if it differs from its process's model."""
    model = load_two_tower(source, device=device)
    if model.fingerprint != fingerprint:
        raise ModelError("a worker's model differs from the model of the process: give all machines the same one")
    return model


def _download(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    def refuse(reason: str = "") -> ModelError:
        known = [*PUBLISHED, *(str(each) for each in Path(repo_id).parent.glob("*") if each.is_dir())]
        return ModelError(
            f"{repo_id} is neither a folder nor a model of the hub{reason}{nearest(repo_id, known)}: give the folder "
            f"of a model or run, OWNER/NAME of the hub, or a name that 'openvse list models' shows"
        )

    if not is_hub_id(repo_id):  # a slip of the keyboard waits for no network
        raise refuse()
    try:
        config = read_json(Path(hf_hub_download(repo_id, CONFIG, revision=revision)))
        if "format_version" not in config:  # checked before gigabytes are downloaded
            raise ModelError(
                f"{repo_id} is a model of the hub that openvse did not save: run 'openvse convert {repo_id} MODEL' "
                f"and name MODEL, or name {repo_id} in a recipe as a tower's model"
            )
        return Path(snapshot_download(repo_id, revision=revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise refuse(f" ({message_of(error)})") from error
