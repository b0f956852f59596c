"""Trainings of one recipe with different settings, which can be interrupted and continued."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from openvse.analysis.opening import Embedded
from openvse.analysis.stores import OnExtraction, SharedStores, retrieval_recipe, share_stores
from openvse.analysis.telling import TellOnce
from openvse.analysis.views import measure_views
from openvse.corpus import Corpus
from openvse.errors import OpenVSEError
from openvse.evaluation import Metrics, embed_corpus, evaluate
from openvse.files import locked, made, write_whole
from openvse.model import TwoTower
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.retrieval.training import open_data
from openvse.tasks.load import load_as
from openvse.tasks.run import train
from openvse.training.records import Watcher
from openvse.types import OnProgress

RESULT = "swept.json"
"""The file in the folder of a run that says that it is finished, and what it reached."""


@dataclass(frozen=True)
class Setting:
    """A row or cell of a sweep.

    Attributes:
        name: its name, also that of its folder.
        at: its place on each axis of the figure.
        overrides: what it changes in the recipe, ``key=value`` each.
    """

    name: str
    at: tuple[float, ...]
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Swept:
    """What the runs of one setting reached, one for each seed.

    Attributes:
        setting: the setting.
        seeds: the seeds.
        metrics: the metrics of the best model of each seed on the measured split.
        views: the mean cosine of two views of an image, for each seed; empty if there are no views.
    """

    setting: Setting
    seeds: tuple[int, ...]
    metrics: tuple[Metrics, ...]
    views: tuple[float, ...] = ()

    def mean(self, metric: str = "rsum") -> float:
        """Return the mean of a metric over the seeds."""
        return float(np.mean([each[metric] for each in self.metrics]))

    def spread(self, metric: str = "rsum") -> float:
        """Return the standard deviation of a metric over the seeds; 0 for one seed."""
        return float(np.std([each[metric] for each in self.metrics], ddof=1)) if len(self.seeds) > 1 else 0.0


@dataclass(frozen=True)
class Sweep:
    """What to train.

    Attributes:
        recipe: the recipe by name or file.
        overrides: overrides that all settings share.
        settings: the settings.
        seeds: the seeds of each setting.
        folder: the folder of the runs.
        split: the split on which the best models are measured.
    """

    recipe: str
    overrides: tuple[str, ...]
    settings: Sequence[Setting]
    seeds: tuple[int, ...]
    folder: Path
    split: str = "validation"
    watcher: Watcher | None = field(default=None, compare=False)
    extracted: OnExtraction | None = field(default=None, compare=False)


def run_sweep(sweep: Sweep, progress: OnProgress | None = None) -> list[Swept]:
    """Train every setting with every seed, and measure its best model.

    What is finished is read from its folder, and what was interrupted goes on.

    Raises:
        OpenVSEError: a setting does not fit the recipe, or the folder holds a sweep of another recipe.
    """
    recipes = [
        [_recipe(sweep, setting, seed) for seed in sweep.seeds] for setting in sweep.settings
    ]  # what does not fit is known before hours of training
    first = recipes[0][0]
    corpus = open_data(first)
    with made(sweep.folder), locked(sweep.folder, "sweep", OpenVSEError):
        stores = share_stores(first, corpus, sweep.folder, sweep.extracted)
        found, done, total = [], 0, len(sweep.settings) * len(sweep.seeds)
        teller = TellOnce(sweep.watcher)
        for setting in sweep.settings:
            values = []
            for seed in sweep.seeds:
                place = f"training {done + 1} of {total}: {setting.name}, seed {seed}"
                values.append(_one(sweep, setting, seed, corpus, stores, teller, place))
                done += 1
                if progress is not None:
                    progress("trainings", done, total)
            views = tuple(value["views"] for value in values if value["views"] is not None)
            found.append(Swept(setting, sweep.seeds, tuple(value["metrics"] for value in values), views))
    return found


def _recipe(sweep: Sweep, setting: Setting, seed: int, more: Sequence[str] = ()) -> RetrievalRecipe:
    return retrieval_recipe(sweep.recipe, [*sweep.overrides, *setting.overrides, f"seed={seed}", *more])


def _one(
    sweep: Sweep,
    setting: Setting,
    seed: int,
    corpus: Corpus,
    stores: SharedStores,
    teller: TellOnce,
    place: str,
) -> Mapping[str, Any]:
    """Return what a run reached; it is trained, or continued, if that is not known yet."""
    folder = sweep.folder / f"{setting.name}_s{seed}"
    recipe = _recipe(sweep, setting, seed, stores.overrides)
    asked = {"recipe": recipe.to_dict(), "split": sweep.split}
    if (known := _known(folder / RESULT, asked)) is not None:
        return known
    teller.begin(place)
    best = train(recipe, folder, resume=True, watcher=teller).best
    model = load_as(TwoTower, best)
    kept = embed_corpus(model, corpus.split(sweep.split), stores.images, text_features=stores.texts)
    metrics = evaluate(kept.images, kept.texts, kept.corpus.relevance, model.similarity, resamples=0).metrics
    embedded = Embedded(setting.name, model, kept.corpus, kept.images, kept.texts)
    has_views = kept.images.vectors.shape[1] > 1
    views = measure_views(embedded)[0].mean_similarity if has_views else None
    reached = {"metrics": dict(metrics), "views": views}
    write_whole(folder / RESULT, json.dumps(asked | reached, indent=2) + "\n")
    return reached


def _known(path: Path, asked: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what an earlier sweep wrote about the same run; None if it wrote nothing, or measured another split.

    Raises:
        OpenVSEError: the run has another recipe.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    wanted = json.loads(json.dumps(asked))
    if kept.get("recipe") != wanted["recipe"]:
        before = kept.get("recipe") or {}
        keys = {*before, *wanted["recipe"]}
        changed = sorted(key for key in keys if before.get(key) != wanted["recipe"].get(key))
        raise OpenVSEError(
            f"{path.parent} was trained with another {', '.join(changed)}: choose another --out for this sweep"
        )
    return kept if kept.get("split") == wanted["split"] else None
