"""A model from its folder, or from the hub."""

from __future__ import annotations

from pathlib import Path

import torch

from openvse.errors import ModelError
from openvse.model import TwoTower, read_config, read_weights
from openvse.retrieval.build import build_model
from openvse.tasks.recipes import parse_recipe
from openvse.vqa.answerer import Answerer
from openvse.vqa.build import build_answerer
from openvse.vqa.recipe import VQARecipe


def load(
    source: str | Path, *, device: str | torch.device = "cpu", revision: str | None = None
) -> TwoTower | Answerer:
    """Load a model folder, or download one from the Hugging Face hub, ready to use.

    Args:
        source: a folder, or a hub id such as ``someone/flickr30k-vse-infinity``.
        device: where the weights go.
        revision: branch, tag or commit on the hub.

    Returns:
        Two towers, or an ``Answerer`` if the model was trained to answer questions.

    Raises:
        ModelError: no such folder or hub id, or a damaged one.
    """
    folder = Path(source)
    if not folder.exists():
        folder = _download(str(source), revision)
    recipe = parse_recipe(read_config(folder))
    model: TwoTower | Answerer = (
        build_answerer(recipe, assets=folder)
        if isinstance(recipe, VQARecipe)
        else build_model(recipe, assets=folder)
    )
    read_weights(model, folder)
    return model.to(device).eval()


def load_model(
    source: str | Path, *, device: str | torch.device = "cpu", revision: str | None = None
) -> TwoTower:
    """Load a model that compares pictures and sentences; see ``load``.

    Raises:
        ModelError: it is none, or as ``load`` says.
    """
    model = load(source, device=device, revision=revision)
    if not isinstance(model, TwoTower):
        raise ModelError(
            f"{source} answers questions about pictures and has no embeddings to compare: use openvse ask or "
            f"evaluate with it, and train a recipe of retrieval for this"
        )
    return model


def load_answerer(
    source: str | Path, *, device: str | torch.device = "cpu", revision: str | None = None
) -> Answerer:
    """Load a model that answers questions; see ``load``.

    Raises:
        ModelError: it is none, or as ``load`` says.
    """
    model = load(source, device=device, revision=revision)
    if not isinstance(model, Answerer):
        raise ModelError(
            f"{source} compares pictures and sentences and answers no questions: train a recipe of the task vqa, such "
            f"as score_attention/folder_cpu"
        )
    return model


def _download(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, revision=revision))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ModelError(
            f"{repo_id} is neither a folder nor a model that the hub gave ({reason}): check the path or the id"
        ) from error
