"""Runs by the name that a user gives: their model, their recipe, and their progress."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openvse.errors import ModelError, OpenVSEError, RecipeError
from openvse.files import LOCK, read_text
from openvse.model.base import CONFIG, read_config
from openvse.specs.load import parse_yaml
from openvse.specs.model import section
from openvse.tasks.load import folder_of_model
from openvse.tasks.run import RECIPE
from openvse.training.optimizer import BEST, CHECKPOINT
from openvse.training.records import METRICS, read_records

SHARED_STORES = "stores"
"""The folder of the feature stores that the runs of a sweep share, beside these runs."""
_KEYS, _SAYS_NOTHING = 6, ("name", "description")
_SEED = re.compile(r"[-_.]*(?:seed|s)[-_]?\d+$")


@dataclass(frozen=True)
class NamedRun:
    """A run or a model by its name. A hub id or folder of a model alone has neither folder nor recipe.

    The recipe has no seed. The scores of ``others`` are averaged with its own, and ``reranker`` re-ranks its results.
    """

    source: str
    model: str
    folder: Path | None = None
    recipe: str | None = None
    others: tuple[NamedRun, ...] = ()
    reranker: NamedRun | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """The folders or hub ids of all its models. A re-ranking model is the last."""
        again = () if self.reranker is None else (self.reranker.model,)
        return self.model, *(other.model for other in self.others), *again

    @property
    def name(self) -> str:
        """The name in tables: the folder's, without ``best``, or the hub id. Several models have all their names."""
        own = self.model if self.folder is None else self.folder.name
        names = " + ".join([own, *(other.name for other in self.others)])
        return names if self.reranker is None else f"{names} ~ {self.reranker.name}"

    def unfinished(self) -> str:
        """Return a line with the progress of the run, or "" if it has finished or has no record."""
        if self.folder is None:
            return ""
        planned, done = _planned_epochs(self.folder), _validated_epochs(self.folder / METRICS)
        if not planned or not done or done >= planned:
            return ""
        return f"{self.source} has finished {done} of {planned} epochs: its best model so far is measured"

    def digests(self, split: str) -> set[str]:
        """Return the hashes of the data of a split that its models name, none for models without them."""
        digests = set()
        for model in self.models:
            try:
                named = section(read_config(folder_of_model(model)).provenance, "data", "digests")
            except OpenVSEError:
                continue
            if split in named:
                digests.add(str(named[split]))
        return digests


def differing_data(rows: Mapping[str, Sequence[NamedRun]]) -> list[str]:
    """Return a line for the training and for the validation split, if not all runs of the rows had the same data."""
    lines = []
    for split, did in (("train", "trained"), ("validation", "validated")):
        alike: dict[frozenset[str], list[str]] = {}
        for name, runs in rows.items():
            if digests := frozenset().union(*(run.digests(split) for run in runs)):
                alike.setdefault(digests, []).append(name)
            if len(digests) > 1 and len(runs) > 1:
                lines.append(f"{name}: its runs were {did} on different data, and their mean mixes them")
        if len(alike) > 1:
            listed = "; ".join(", ".join(names) for names in alike.values())
            effect = ", so that their validation scores cannot be compared" if split == "validation" else ""
            lines.append(f"not all runs were {did} on the same data ({listed}){effect}")
    return lines


def differing_keys(rows: Mapping[str, Sequence[NamedRun]]) -> list[str]:
    """Return a line for each row but the first: the keys in which its recipe differs from the first."""
    (first, recipe), *others = ((name, _leaves(json.loads(runs[0].recipe or "{}"))) for name, runs in rows.items())
    lines = []
    for name, other in others:
        keys = [key for key in {**recipe, **other} if recipe.get(key) != other.get(key)]
        if recipe and other and (keys := [key for key in keys if key not in _SAYS_NOTHING]):
            more = f" and {len(keys) - _KEYS} more" if len(keys) > _KEYS else ""
            several = len({tuple(key.split(".")[:2]) for key in keys}) > 1
            more += ": any of these may make the difference" if several else ""
            lines.append(f"{name} differs from {first} in {', '.join(keys[:_KEYS])}{more}")
    return lines


def _leaves(tree: object, above: str = "") -> dict[str, object]:
    """Return the values of a tree by their dotted keys."""
    if not isinstance(tree, dict | list) or not tree:
        return {above: tree}
    pairs = enumerate(tree) if isinstance(tree, list) else tree.items()
    found = [_leaves(value, f"{above}.{key}".lstrip(".")) for key, value in pairs]
    return {key: value for each in found for key, value in each.items()}


def find_runs(source: str) -> NamedRun:
    """Return a run, several whose scores are averaged (``RUN+RUN``), or one with a re-ranking model (``RUN~MODEL``)."""
    if Path(source).exists() or not {"+", "~"} & set(source):
        return find_run(source)
    averaged, again, reranker = source.partition("~")
    words = averaged.split("+")
    if not all(words) or (again and (not reranker or {"+", "~"} & set(reranker))):
        raise OpenVSEError(f"{source!r} cannot be read: write RUN+RUN for mean scores, and RUN~MODEL to rerank")
    first, *others = map(find_run, words)
    again_by = find_run(reranker) if again else None
    return replace(first, source=source, recipe=None, others=tuple(others), reranker=again_by)


def find_run(source: str) -> NamedRun:
    """Return the run or model of a name: the folder of a run or model, such as ``best/``, or a name for ``load``."""
    path = Path(source)
    folder = path.parent if path.name == BEST and (path.parent / RECIPE).is_file() else path
    if not (path / CONFIG).is_file() and (path / BEST / CONFIG).is_file():
        path = path / BEST
    elif not (path / CONFIG).is_file() and any((path / name).exists() for name in (RECIPE, CHECKPOINT)):
        raise ModelError(f"{source} has no {BEST}/{CONFIG}, saved after its first epoch: wait, or leave it out")
    if not path.exists():
        return NamedRun(source, source)
    return NamedRun(source, str(path), folder if folder.name else folder.resolve(), _recipe(folder / RECIPE))


def split_name(word: str) -> tuple[str | None, str]:
    """Return the name that a user gives with ``NAME=SOURCE``, and the source, or no name if the word itself exists."""
    name, equals, source = word.partition("=")
    return (name, source) if equals and not Path(word).exists() else (None, word)


def parse_rows(words: Sequence[str], *, apart: bool = False) -> dict[str, list[NamedRun]]:
    """Return the rows of a comparison by name, in the order in which they were first named.

    Runs whose recipes differ at most in the seed make one row, with the name of the first run without its seed, unless
    ``apart`` is set. ``NAME=RUN,RUN`` makes a separate row of several runs.
    """
    groups: dict[str, list[NamedRun]] = {}
    given: dict[str, str] = {}
    # A shell lists these, too, among the runs of a sweep.
    runs = [each for each in words if Path(each).name not in (LOCK, SHARED_STORES)]
    for word in runs:
        name, listed = split_name(word)
        if name is None:
            run = find_runs(word)
            groups.setdefault(f"recipe {run.recipe}" if run.recipe and not apart else f"run {word}", []).append(run)
            continue
        sources = [source for source in listed.split(",") if source]
        if not name or not sources or name in given.values():
            raise OpenVSEError(f"{word!r} names no row of its own: write NAME=RUN,RUN with a new name and its runs")
        given[f"row {name}"] = name
        groups[f"row {name}"] = [find_runs(source) for source in sources]
    _refuse_twice([run for group in groups.values() for run in group])
    names = {key: given.get(key) or _group_name(group) for key, group in groups.items()}
    return {
        name if [*names.values()].count(name) == 1 else ", ".join(run.source for run in groups[key]): groups[key]
        for key, name in names.items()
    }


def _refuse_twice(runs: Sequence[NamedRun]) -> None:
    models = [
        "+".join(str(Path(model).resolve()) if Path(model).exists() else model for model in run.models) for run in runs
    ]
    for model, run in zip(models, runs, strict=True):
        if models.count(model) > 1:
            raise OpenVSEError(f"{run.source} is named twice: name each run once")


def _group_name(group: Sequence[NamedRun]) -> str:
    name = group[0].name
    return (_SEED.sub("", name) or name) if len(group) > 1 else name


def _recipe(path: Path) -> str | None:
    """Return a recipe as text without its seed, or None if there is no readable one."""
    tree = {key: value for key, value in (_tree(path) or {}).items() if key != "seed"}
    return json.dumps(tree, sort_keys=True) if tree else None


def _tree(path: Path) -> Mapping[str, Any] | None:
    try:
        tree = parse_yaml(read_text(path))
    except (OSError, ValueError, RecipeError):
        return None
    return tree if isinstance(tree, dict) else None


def _planned_epochs(folder: Path) -> int:
    """Return the epochs of the phases for which the run has enough images, or 0 if its recipe has none."""
    try:
        images = read_records(folder / METRICS).of("data")[-1]["train_images"]
    except (OpenVSEError, IndexError, KeyError):  # from a task without phases
        images = math.inf
    try:
        phases = (_tree(folder / RECIPE) or {})["training"]["phases"]
        return sum(int(phase["epochs"]) for phase in phases if phase.get("least_images", 0) <= images)
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0


def _validated_epochs(path: Path) -> int:
    """Return the last epoch with a validation, or 0 if there is none, or no record."""
    try:
        validations = read_records(path).of("validation")
    except OpenVSEError:
        return 0
    return int(validations[-1]["epoch"]) if validations else 0
