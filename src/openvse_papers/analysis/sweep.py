"""Sweeps: one recipe trained with every combination of some values, the results of each, and figures of them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from accelerate import Accelerator

from openvse.corpus import Corpus
from openvse.corpus.trained_on import SplitData
from openvse.errors import OpenVSEError, nearest
from openvse.evaluation.embed import embed_corpus
from openvse.evaluation.metrics import RECALLS, Metrics, metric_names, metric_of
from openvse.evaluation.report import evaluate_sets, metric_title
from openvse.features.store import FeatureStore
from openvse.files import locked, made, read_json, write_whole
from openvse.model.two_tower import TwoTower
from openvse.output.figures import COLUMN, HEAT, colour, lines_of, new_figure
from openvse.output.table import Cell, Table
from openvse.pipeline import WorkProgress
from openvse.retrieval.build import build_model
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.retrieval.training import build_run, open_data
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe
from openvse.tasks.run import changed_keys, run_recipe, without_places
from openvse.tasks.runs import SHARED_STORES
from openvse.training.inputs import RunInputs, open_features, open_text_features
from openvse.training.records import Silent, Watcher
from openvse.types import FeatureSource, OnProgress
from openvse_papers.analysis.embeddings import measure_views
from openvse_papers.analysis.opening import Analysis, Draw, Embedded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULT = "swept.json"
"""The file in the folder of a run that marks it as finished, with its results."""

VIEW_COSINE = "view_cosine"
"""The mean cosine of two views of an image, for models with several embeddings of an image."""

_LONGEST_NAME = 200
_MOST_TICKS = 25


@dataclass(frozen=True)
class Axis:
    """The axis of a sweep: a key, or the user's label of several, with the overrides of each value."""

    label: str
    values: tuple[str, ...]
    overrides: tuple[tuple[str, ...], ...]

    @property
    def numbers(self) -> list[float] | None:
        """The values as numbers, or None if one of them is no number."""
        numbers = [swept_number(value) for value in self.values]
        return [number for number in numbers if number is not None] if None not in numbers else None


@dataclass(frozen=True)
class Setting:
    """A combination of values, one for each axis. It has the same name as its folder."""

    name: str
    at: tuple[str, ...]
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Swept:
    """The results of one setting: the metrics of each seed's best model on the measured split."""

    setting: Setting
    metrics: tuple[Metrics, ...]

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric over the seeds, or None if a run does not have it."""
        values = [each.get(metric) for each in self.metrics]
        return float(np.mean(values)) if None not in values else None  # type: ignore[arg-type]

    def spread(self, metric: str) -> float | None:
        """Return the standard deviation over the seeds, divided by n - 1, or None for one seed."""
        known = len(self.metrics) > 1 and self.mean(metric) is not None
        return float(np.std([each[metric] for each in self.metrics], ddof=1)) if known else None


@dataclass(frozen=True)
class Sweep:
    """The trainings of a sweep: a recipe with every combination of the values of the axes, once for each seed."""

    recipe: str
    overrides: tuple[str, ...]
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    folder: Path
    split: str = "validation"

    def settings(self) -> list[Setting]:
        """Return the settings of all axes. Raise OpenVSEError if two would have the same folder."""
        choices = [
            [(axis, value, changes) for value, changes in zip(axis.values, axis.overrides, strict=True)]
            for axis in self.axes
        ]
        settings = []
        for chosen in product(*choices):
            names = (f"{axis.label}-{value}" for axis, value, _ in chosen)
            name = re.sub(r"[^\w.+-]+", "-", "_".join(names)).strip("-")
            overrides = tuple(each for _, _, changes in chosen for each in changes)
            settings.append(Setting(name, tuple(value for _, value, _ in chosen), overrides))
        folders = [setting.name for setting in settings]
        if bad := next((f for f in folders if len(f) > _LONGEST_NAME or folders.count(f) > 1), None):
            raise OpenVSEError(f"{bad[:80]!r} cannot be a folder: give values short names, --setting NAME:KEY=VALUE")
        return settings


def parse_axes(words: Sequence[str], settings: Sequence[str]) -> tuple[tuple[str, ...], tuple[Axis, ...]]:
    """Return the overrides that all trainings share, and the axes.

    Args:
        words: ``key=value``, or ``key=value,value`` to vary the key. Commas in brackets or quotes belong to a value.
        settings: values of several keys that change together, ``NAME:key=value,key=value``. Names ``LABEL=VALUE`` with
            one label make an axis of this label, and all other names make one more axis.
    """
    shared: list[str] = []
    axes: list[Axis] = []
    for word in words:
        key, _, listed = word.partition("=")
        if key == "seed":
            raise OpenVSEError(f"{word}: --seeds sets the seeds of a sweep: give them there, such as --seeds 0,1,2")
        values = _split(listed)
        if len(values) == 1:
            shared.append(word)
            continue
        if key in (axis.label for axis in axes):
            raise OpenVSEError(f"{word}: {key} is varied twice: give all of its values at once")
        axes.append(Axis(key, _distinct(values, word), tuple((f"{key}={value}",) for value in values)))
    axes += _named(settings)
    # Without anything to vary, the seeds of the recipe itself are trained.
    return tuple(shared), tuple(axes) or (Axis("setting", ("recipe",), ((),)),)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read whole numbers with commas between them. Raise OpenVSEError if one is below 0, or appears twice."""
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise OpenVSEError(f"--seeds is {text!r}: give whole numbers with commas between, such as 0,1,2")
    return tuple(map(int, _distinct([str(int(word)) for word in words], f"--seeds {text}")))


def _named(settings: Sequence[str]) -> list[Axis]:
    by_label: dict[str, dict[str, tuple[str, ...]]] = {}
    for text in settings:
        name, colon, changes = text.partition(":")
        label, equals, value = name.strip().rpartition("=")
        if not value or not colon or (equals and not label):
            raise OpenVSEError(f"--setting {text!r} cannot be read: write NAME:KEY=VALUE,KEY=VALUE")
        axis = by_label.setdefault(label or "setting", {})
        if value in axis:
            raise OpenVSEError(f"--setting {text!r}: {name.strip()} is given twice: give each name once")
        axis[value] = tuple(each.strip() for each in _split(changes) if each.strip())
    return [Axis(label, (*values,), (*values.values(),)) for label, values in by_label.items()]


def _split(text: str) -> list[str]:
    """Cut a text at its commas, but not inside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _distinct(values: Sequence[str], where: str) -> tuple[str, ...]:
    if "" in values or len({*values}) < len(values):
        raise OpenVSEError(f"{where}: a value is empty or given twice: give each value once")
    return tuple(values)


def swept_number(text: str) -> float | None:
    """Return the finite number in a text, or None if it holds none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def run_sweep(sweep: Sweep, watcher: Watcher | None = None, progress: OnProgress | None = None) -> list[Swept]:
    """Train every setting with every seed, and measure its best model.

    Finished trainings are read from their folders, and interrupted ones continue.
    """
    settings = sweep.settings()
    recipes = [[_recipe(sweep, setting, seed) for seed in sweep.seeds] for setting in settings]
    for recipe, *_ in recipes:  # misfits are found before hours of training
        build_run(recipe, open_data(recipe))
    with made(sweep.folder), locked(sweep.folder, "sweep", OpenVSEError):
        runs = _Runs(sweep, watcher, progress)
        results, done, total = [], 0, len(settings) * len(sweep.seeds)
        for setting, of_seeds in zip(settings, recipes, strict=True):
            reached = []
            for seed, recipe in zip(sweep.seeds, of_seeds, strict=True):
                place = f"training {done + 1} of {total}: {setting.name}, seed {seed}"
                reached.append(runs.reach(setting, seed, recipe, place))
                done += 1
                if progress is not None:
                    progress("trainings", done, total)
            results.append(Swept(setting, tuple(reached)))
    return results


def _recipe(sweep: Sweep, setting: Setting, seed: int, more: Sequence[str] = ()) -> RetrievalRecipe:
    recipe = load_recipe(sweep.recipe, [*sweep.overrides, *setting.overrides, f"seed={seed}", *more])
    if not isinstance(recipe, RetrievalRecipe):
        raise OpenVSEError(f"recipe {recipe.name} is for {recipe.task}: name one of retrieval ('openvse list recipes')")
    return recipe


_Stores = tuple[FeatureSource | None, FeatureStore | None]
"""The local features of the images and the token states of the texts. None where they are not stored."""


def _share_stores(recipe: RetrievalRecipe, corpus: Corpus, folder: Path, progress: OnProgress | None) -> _Stores:
    """Open the stores that a recipe names, and extract its other features once, below a folder, for all runs."""

    def extracted(state: WorkProgress) -> None:
        if progress is not None:
            progress(f"extracting {state.unit}", state.done, state.total)

    model = build_model(recipe, captions=corpus.captions, seed=recipe.seed)
    inputs = RunInputs(folder, Accelerator(), Silent(), extracted)
    images = open_features(recipe, model.image.encoder, corpus, inputs)
    return images, open_text_features(recipe, model.text.encoder, corpus.captions, inputs)


class _Once:
    """Passes each note and each warning to a watcher once, because trainings on the same data repeat them."""

    def __init__(self, watcher: Watcher) -> None:
        self.started, self.step, self.epoch = watcher.started, watcher.step, watcher.epoch
        self.note, self.warn = cache(watcher.note), cache(watcher.warn)


class _Runs:
    """The runs of a sweep. Runs with the same data and encoders share stored features."""

    def __init__(self, sweep: Sweep, watcher: Watcher | None, progress: OnProgress | None) -> None:
        self._sweep, self._progress = sweep, progress
        self._watcher = _Once(watcher or Silent())
        self._shared: dict[str, tuple[Corpus, _Stores, dict[str, str]]] = {}

    def reach(self, setting: Setting, seed: int, plain: RetrievalRecipe, place: str) -> Metrics:
        """Return the results of a run, which is trained or continued if it has none yet."""
        sweep = self._sweep
        corpus, stores, digests = self._data(setting, plain)
        folder = sweep.folder / f"{setting.name}_s{seed}"
        named = zip(("features", "text_features"), stores, strict=True)
        more = [f"data.{key}={store.path.resolve()}" for key, store in named if isinstance(store, FeatureStore)]
        recipe = _recipe(sweep, setting, seed, more)
        asked = {"recipe": recipe.to_dict(), "split": sweep.split, "data": digests}
        if (known := _known(folder / RESULT, asked)) is not None:
            return known
        self._watcher.note(place)
        run = run_recipe(recipe, folder, resume=True, watcher=self._watcher)
        model = load_as(TwoTower, run.best)
        cached = embed_corpus(model, corpus.split(sweep.split), stores[0], text_features=stores[1])
        report = evaluate_sets(cached.images, cached.texts, cached.corpus.relevance, model.similarity, resamples=0)
        metrics = dict(report.metrics)
        if cached.images.vectors.shape[1] > 1:
            embedded = Embedded(setting.name, model, cached.corpus, cached.images, cached.texts)
            metrics[VIEW_COSINE] = measure_views(embedded)[0].mean_similarity
        write_whole(folder / RESULT, json.dumps(asked | {"metrics": metrics}, indent=2) + "\n")
        return metrics

    def _data(self, setting: Setting, recipe: RetrievalRecipe) -> tuple[Corpus, _Stores, dict[str, str]]:
        """Return the data of a recipe, with stored features, and hashes of the pairs of its splits and of its encoders.

        Its stores are named by their content, and by a place only where the sweep varies the place.
        """
        tree = recipe.to_dict()
        seed = tree["data"]["limit"] and tree["seed"]  # the seed draws the training images
        encoders = [tree[side]["encoder"] for side in ("image", "text")]
        if (key := _digest(tree["data"], seed, encoders)) not in self._shared:
            corpus, read_splits = open_data(recipe), sorted({"train", "validation", self._sweep.split})
            digests = {split: SplitData.of_pairs(corpus.split(split)).digest for split in read_splits}
            varied = [each for each in setting.overrides if each.startswith("data.source=")]
            name = _digest(without_places(tree["data"]), seed, encoders, digests, varied)
            stores = _share_stores(recipe, corpus, self._sweep.folder / SHARED_STORES / name, self._progress)
            made = zip(("features", "text features"), stores, strict=True)
            digests |= {what: store.fingerprint for what, store in made if isinstance(store, FeatureStore)}
            self._shared[key] = corpus, stores, digests
        return self._shared[key]


def _digest(*read: object) -> str:
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()[:12]


def _known(path: Path, asked: Mapping[str, Any]) -> Metrics | None:
    """Return the results of the same run in an earlier sweep, or None without any, or of another split."""
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return None
    wanted = json.loads(json.dumps(asked))
    if changed := changed_keys(record.get("recipe") or {}, wanted["recipe"]):
        raise OpenVSEError(f"{path.parent} was trained with another {', '.join(changed)}: choose another --out")
    if changed := [what for what, digest in wanted["data"].items() if record.get("data", {}).get(what) != digest]:
        raise OpenVSEError(
            f"{path.parent} was trained on other data (another {', '.join(changed)}), so its figures cannot be "
            f"compared with new ones: choose another --out for this sweep"
        )
    return dict(record["metrics"]) if record.get("split") == wanted["split"] else None


def check_metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics to draw, RSUM by default. Raise OpenVSEError for an unknown metric."""
    known = [name for name in metric_names(2) if not ((each := metric_of(name)) and each.reads_places)]
    for metric in metrics:
        if metric not in (allowed := [*known, VIEW_COSINE]):
            raise OpenVSEError(f"no metric {metric!r}{nearest(metric, allowed)}: give one of {', '.join(allowed)}")
    return tuple(dict.fromkeys(metrics)) or ("rsum",)


def analyze_sweep(sweep: Sweep, results: Sequence[Swept], metrics: Sequence[str]) -> Analysis:
    """Draw metrics over the axes: a line over numbers, a heat map over two axes, or a point for each setting.

    The first metric decides which setting is best.
    """
    for metric in metrics:
        if all(each.mean(metric) is None for each in results):
            raise OpenVSEError(f"no model of this sweep has several views, so none has a {metric}: draw another metric")
    figures: dict[str, Draw] = {
        "" if metric == metrics[0] else metric: partial(_draw, sweep, results, metric) for metric in metrics
    }
    summary, table = _tables(sweep, results, metrics)
    return Analysis("sweep", summary, {"": table}, figures)


def _tables(sweep: Sweep, results: Sequence[Swept], metrics: Sequence[str]) -> tuple[Table, Table]:
    """Return a table of the requested metrics, and one with all recalls. Both have one row for each setting."""
    has_views = any(each.mean(VIEW_COSINE) is not None for each in results)
    names = dict.fromkeys((*RECALLS, "rsum", *metrics, *[VIEW_COSINE] * has_views))
    values = {axis.label: [_plain(each.setting.at[place]) for each in results] for place, axis in enumerate(sweep.axes)}
    means = {name: [_cell(each.mean(name)) for each in results] for name in names}
    spread = {f"spread of {metric}": [_cell(each.spread(metric)) for each in results] for metric in metrics}
    best = _best(results, metrics[0])
    shown = {metric: means[metric] for metric in metrics} | (spread if len(sweep.seeds) > 1 else {})
    marks = ["best" if each is best else "" for each in results]
    seeds = [len(each.metrics) for each in results]
    return Table.of({**values, **shown, "": marks}), Table.of({**values, **means, **spread, "seeds": seeds})


def _best(results: Sequence[Swept], metric: str) -> Swept:
    sign = -1 if (found := metric_of(metric)) and found.less_is_better else 1
    known = [each for each in results if each.mean(metric) is not None]
    return max(known, key=lambda each: sign * (each.mean(metric) or 0.0))


def _plain(value: str) -> Cell:
    number = swept_number(value)
    return value if number is None else int(number) if number == int(number) else number


def _cell(value: float | None) -> Cell:
    return "" if value is None else value


def _draw(sweep: Sweep, results: Sequence[Swept], metric: str) -> Figure:
    title = "cosine of two views" if metric == VIEW_COSINE else metric_title(metric)
    label = f"{title} on {sweep.split}"
    varied = [axis for axis in sweep.axes if len(axis.values) > 1]
    if len(varied) == 2:
        return _draw_grid(varied, results, metric, label)
    if len(varied) == 1 and varied[0].numbers is not None:
        return _draw_line(varied[0], results, metric, label)
    return _draw_points(results, metric, label)


def _draw_grid(axes_of: Sequence[Axis], results: Sequence[Swept], metric: str, label: str) -> Figure:
    down, across = axes_of
    # The settings are in the order of the axes, and the last one varies fastest.
    means = [each.mean(metric) for each in results]
    values = np.array([np.nan if mean is None else mean for mean in means]).reshape(len(down.values), -1)
    figure = new_figure(COLUMN, 0.42 * len(down.values) + 1.1)
    axes = figure.subplots()
    drawn = axes.imshow(values, cmap=HEAT, aspect="auto")
    axes.set_xticks(range(len(across.values)), across.values)
    axes.set_yticks(range(len(down.values)), down.values)
    axes.set(xlabel=across.label, ylabel=down.label)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    best = _best(results, metric).mean(metric)
    digits = 3 if metric == VIEW_COSINE else 1
    for (row, column), value in np.ndenumerate(values):
        ink, weight = "black" if value > middle else "white", "bold" if value == best else "normal"
        text = "" if np.isnan(value) else f"{value:.{digits}f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=ink, weight=weight)
    seeds = len(results[0].metrics)
    figure.colorbar(drawn, ax=axes, label=label + (f", mean of {seeds} seeds" if seeds > 1 else ""))
    return figure


def _draw_line(axis: Axis, results: Sequence[Swept], metric: str, label: str) -> Figure:
    figure = new_figure(COLUMN, 2.3)
    axes = figure.subplots()
    points = sorted(
        (number, mean, each.spread(metric) or 0.0)
        for number, each in zip(axis.numbers or [], results, strict=True)
        if (mean := each.mean(metric)) is not None
    )
    numbers, means, spread = zip(*points, strict=True)
    least = min((after - before for before, after in pairwise(numbers)), default=1.0)
    # Labels of numbers such as 0, 0.01, 0.1 and 1 would overlap, so they are spaced evenly.
    places = numbers if least * _MOST_TICKS >= numbers[-1] - numbers[0] else range(len(numbers))
    axes.errorbar(places, means, yerr=spread if any(spread) else None, fmt="o-", capsize=2, color=colour(0))
    axes.set_xticks(places, [f"{number:g}" for number in numbers])
    if metric == VIEW_COSINE:  # on the whole scale, so that views which are nearly the same look so
        axes.set_ylim(min(0.0, *means), 1.05)
    axes.set(xlabel=axis.label, ylabel=label)
    _say_bars(axes, results)
    return figure


def _draw_points(results: Sequence[Swept], metric: str, label: str) -> Figure:
    known = [(each, mean) for each in results if (mean := each.mean(metric)) is not None]
    figure = new_figure(COLUMN, 0.24 * len(known) + 0.9)
    axes = figure.subplots()
    names = [", ".join(each.setting.at) for each, _ in known]
    means, spread = [mean for _, mean in known], [each.spread(metric) or 0.0 for each, _ in known]
    places = range(len(names))
    # Points, because differences are small against the sum, and bars would have to begin at 0.
    axes.errorbar(means, places, xerr=spread if any(spread) else None, fmt="o", capsize=2, color=colour(0))
    digits = 3 if metric == VIEW_COSINE else 1
    for place, mean in zip(places, means, strict=True):
        axes.annotate(f"{mean:.{digits}f}", (mean, place), (0, 4), textcoords="offset points", ha="center", fontsize=7)
    axes.set_yticks(places, [lines_of(name, 30) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.7)
    axes.margins(x=0.15)
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(label)
    _say_bars(axes, results)
    return figure


def _say_bars(axes: Axes, results: Sequence[Swept]) -> None:
    """Name the error bars above a figure."""
    if len(results[0].metrics) > 1:
        axes.set_title(f"mean and standard deviation of {len(results[0].metrics)} seeds", fontsize=7)
