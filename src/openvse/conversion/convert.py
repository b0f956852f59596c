"""From a released checkpoint to a model folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openvse.conversion import pvse, vse_2ad, vse_infinity
from openvse.conversion.checkpoint_file import read_checkpoint
from openvse.conversion.released import Plan, Released, Weights, released
from openvse.conversion.text_assets import write_text_assets
from openvse.errors import CheckpointError, nearest
from openvse.model import TwoTower
from openvse.retrieval.build import build_model
from openvse.specs import TwoTowerSpec, apply_override, parse_override, validated

OF_THE_TRAINING = ("name", "objective", "optimizer")  # of a plan's recipe; the rest is the model's spec
NOT_LEARNED = "num_batches_tracked"  # counts batches, and older PyTorch does not have it


@dataclass(frozen=True)
class Repository:
    """What reads the checkpoints of one repository."""

    recognise: Callable[[Released], bool]
    plan: Callable[[Released], Plan]


REPOSITORIES: Mapping[str, Repository] = {
    name: Repository(module.recognise, module.plan)
    for name, module in {"vse_infinity": vse_infinity, "pvse": pvse, "vse_2ad": vse_2ad}.items()
}


@dataclass(frozen=True)
class Conversion:
    """What was converted.

    Attributes:
        repository: a name of ``REPOSITORIES``.
        model: ready to encode.
        notes: what the user should know.
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
    """Turn a checkpoint of VSE-infinity, PVSE or VSE+2AD into a model folder with the same embeddings.

    Nothing that the file contains is run. The folder is written only after every weight has found its place.

    Args:
        checkpoint: what the repository's training saved.
        out: the model folder, which must not exist or be empty.
        vocabulary: the words that the model was trained with, or the tokenizer of its BERT.
        repository: a name of ``REPOSITORIES``; None finds it out.
        overrides: ``key.path=value`` of the recipe, for what a file does not say.

    Raises:
        CheckpointError: the file cannot be read, belongs to another project, or has no counterpart here.
        RecipeError: an override is none.
    """
    path, folder = Path(checkpoint), Path(out)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists: choose a new folder for the model")
    try:
        found = released(read_checkpoint(path))
        name = _which(found, repository)
        plan = _plan(name, found)
        words = None if vocabulary is None else str(vocabulary)
        model = _build(plan, words, overrides, _describe(path, found))
    except CheckpointError as error:
        raise CheckpointError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    model.save(folder)
    return Conversion(name, model, plan.notes)


def _which(found: Released, repository: str | None) -> str:
    """Return the repository that a checkpoint comes from."""
    if repository is not None and repository not in REPOSITORIES:
        names = list(REPOSITORIES)
        raise CheckpointError(
            f"unknown kind {repository!r}{nearest(repository, names)} (allowed: {', '.join(names)})"
        )
    fitting = [name for name, each in REPOSITORIES.items() if each.recognise(found)]
    wanted = fitting if repository is None else [name for name in fitting if name == repository]
    if not wanted:
        of = f"of {repository}" if repository else "of VSE-infinity (GPO), PVSE (PIE-Net) or VSE+2AD (AdPool)"
        raise CheckpointError(
            f"its weights are not those {of}: only checkpoints of their repositories are converted"
        )
    return wanted[0]


def _plan(repository: str, found: Released) -> Plan:
    try:
        return REPOSITORIES[repository].plan(found)
    except (TypeError, ValueError) as error:  # a number that is none, a matrix with one axis
        raise CheckpointError(
            f"its options or weights are not those of {repository} ({error}): only checkpoints as the released code "
            f"saves them are converted"
        ) from error


def _build(plan: Plan, vocabulary: str | None, overrides: Sequence[str], description: str) -> TwoTower:
    """Build the plan's model and fill in every weight."""
    tree: dict[str, Any] = dict(plan.recipe)
    for path, value in map(parse_override, overrides):
        tree = apply_override(tree, path, value)
    stated = {key: tree.pop(key) for key in OF_THE_TRAINING if key in tree}
    spec = validated(TwoTowerSpec, tree)
    with tempfile.TemporaryDirectory() as folder:
        assets = Path(folder)
        weights = write_text_assets(plan, vocabulary, assets / "text")
        model = build_model(spec, assets=assets)
    _fill(model, weights)
    model.provenance = {"recipe": stated.pop("name"), "description": description, **stated}
    return model.eval()


def _fill(model: TwoTower, weights: Weights) -> None:
    """Load the weights.

    Raises:
        CheckpointError: one is missing, left over, or of another shape.
    """
    wanted = model.state_dict()
    missing = [name for name in wanted if name not in weights and not name.endswith(NOT_LEARNED)]
    unknown = [name for name in weights if name not in wanted]
    misshapen = [
        f"{name} {tuple(weights[name].shape)} for {tuple(wanted[name].shape)}"
        for name in wanted.keys() & weights.keys()
        if weights[name].shape != wanted[name].shape
    ]
    for names, what in (
        (missing, "lacks"),
        (unknown, "has no place for"),
        (misshapen, "has other shapes in"),
    ):
        if names:
            raise CheckpointError(
                f"it {what} {len(names)} weights of the model that its options describe, such as {min(names)}: it is "
                f"incomplete, or from a changed copy of the repository"
            )
    model.load_state_dict(weights, strict=False)


def _describe(path: Path, found: Released) -> str:
    progress = ", ".join(f"{key} {value}" for key, value in found.progress.items())
    return f"converted from {path.name}" + (f" ({progress})" if progress else "")
