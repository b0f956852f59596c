"""The conversion of a released checkpoint or a published dual encoder to a model folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openvse.conversion import pvse, vse_2ad, vse_infinity
from openvse.conversion.checkpoint import Plan, ReleasedCheckpoint, find_encoders
from openvse.conversion.checkpoint_file import read_checkpoint
from openvse.conversion.dual_encoders import convert_dual, open_dual
from openvse.conversion.hub import is_hub_id
from openvse.conversion.published import PUBLISHED
from openvse.conversion.text_assets import write_text_assets
from openvse.conversion.weights import expect_fit, expect_own_storage, single_precision
from openvse.errors import CheckpointError, nearest
from openvse.files import replacing_folder
from openvse.model import TwoTower
from openvse.retrieval.build import build_model
from openvse.specs import TwoTowerSpec, apply_override, parse_override, validated

OF_THE_TRAINING = (
    "name",
    "objective",
    "optimizer",
)  # keys of a plan's recipe that are not part of the model's spec


@dataclass(frozen=True)
class Repository:
    """The functions that read the checkpoints of one repository."""

    recognise: Callable[[ReleasedCheckpoint], bool]
    plan: Callable[[ReleasedCheckpoint], Plan]


REPOSITORIES: Mapping[str, Repository] = {
    name: Repository(module.recognise, module.plan)
    for name, module in {"vse_infinity": vse_infinity, "pvse": pvse, "vse_2ad": vse_2ad}.items()
}


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        repository: a name of ``REPOSITORIES``, or the architecture of a dual encoder.
        model: the model, ready to encode.
        notes: remarks for the user.
    """

    repository: str
    model: TwoTower
    notes: tuple[str, ...]


def convert(
    checkpoint: str | Path,
    out: str | Path,
    *,
    vocabulary: str | Path | None = None,
    repository: str | None = None,
    overrides: Sequence[str] = (),
) -> Conversion:
    """Convert a checkpoint of VSE-infinity, PVSE or VSE+2AD, or a dual encoder, to a model folder of equal embeddings.

    No code in the files is run. Checksums, options, names, shapes and number types are verified before a weight is
    copied. The folder appears only when it is complete: every weight has its place and is finite.

    Args:
        checkpoint: the file that the training of a repository saved; or a dual encoder of ``transformers`` or
            OpenCLIP: a folder with its files, a hub id, or a short name of ``PUBLISHED``.
        out: the model folder; it must be empty or not exist.
        vocabulary: the file of the words that the model was trained with, or the tokenizer of its text model; a dual
            encoder brings its own.
        repository: a name of ``REPOSITORIES``; None recognises the repository by the weights.
        overrides: settings of the recipe that a file does not contain, as ``key.path=value``.

    Raises:
        CheckpointError: the file cannot be read, is damaged, belongs to another project, holds numbers that are not
            finite or options that are not plausible, or cannot be represented in openvse.
        RecipeError: an override is not of the form ``key.path=value``.
    """
    folder = Path(out)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists: choose a new folder for the model")
    source = PUBLISHED[str(checkpoint)].source if str(checkpoint) in PUBLISHED else str(checkpoint)
    path = Path(source)
    try:
        if repository is None and (path.is_dir() or (not path.exists() and is_hub_id(source))):
            kind, model = convert_dual(open_dual(source), tokenizer=_text(vocabulary), overrides=overrides)
            done = Conversion(kind, model, ())
        else:
            done = _convert_released(path, _text(vocabulary), repository, overrides)
    except CheckpointError as error:
        raise CheckpointError(str(error) if source in str(error) else f"{source}: {error}") from error
    with replacing_folder(folder) as partial:
        done.model.save(partial)
    return done


def _convert_released(
    path: Path, vocabulary: str | None, repository: str | None, overrides: Sequence[str]
) -> Conversion:
    released = find_encoders(read_checkpoint(path))
    name = _which(released, repository)
    plan = REPOSITORIES[name].plan(released)
    return Conversion(name, _build(plan, vocabulary, overrides, _describe(path, released)), plan.notes)


def _text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)


def _which(checkpoint: ReleasedCheckpoint, repository: str | None) -> str:
    """Return the repository that a checkpoint comes from."""
    if repository is not None and repository not in REPOSITORIES:
        names = list(REPOSITORIES)
        raise CheckpointError(
            f"unknown kind {repository!r}{nearest(repository, names)} (allowed: {', '.join(names)})"
        )
    fitting = [name for name, each in REPOSITORIES.items() if each.recognise(checkpoint)]
    wanted = fitting if repository is None else [name for name in fitting if name == repository]
    if not wanted:
        of = f"of {repository}" if repository else "of VSE-infinity (GPO), PVSE (PIE-Net) or VSE+2AD (AdPool)"
        raise CheckpointError(
            f"its weights are not those {of}: only checkpoints of their repositories are converted"
        )
    return wanted[0]


def _build(plan: Plan, vocabulary: str | None, overrides: Sequence[str], description: str) -> TwoTower:
    """Build the plan's model and fill in every weight."""
    tree: dict[str, Any] = dict(plan.recipe)
    for path, value in map(parse_override, overrides):
        tree = apply_override(tree, path, value)
    stated = {key: tree.pop(key) for key in OF_THE_TRAINING if key in tree}
    spec = validated(TwoTowerSpec, tree)
    expect_own_storage(plan.weights)
    with tempfile.TemporaryDirectory() as folder:
        assets = Path(folder)
        weights = write_text_assets(plan, vocabulary, assets / "text", boundaries=_boundaries(spec))
        with torch.device("meta"):  # only names and shapes, without memory
            expect_fit(weights, build_model(spec, assets=assets).state_dict())
        weights = single_precision(weights)
        model = build_model(spec, assets=assets)
    model.load_state_dict(weights, strict=False)
    model.provenance = {"recipe": stated.pop("name"), "description": description, **stated}
    return model.eval()


def _boundaries(spec: TwoTowerSpec) -> bool:
    """Return whether the text encoder adds a start and an end token to a caption, as all three repositories do."""
    return spec.text.encoder.options.get("boundaries", True) is not False


def _describe(path: Path, checkpoint: ReleasedCheckpoint) -> str:
    progress = ", ".join(f"{key} {value}" for key, value in checkpoint.progress.items())
    return f"converted from {path.name}" + (f" ({progress})" if progress else "")
