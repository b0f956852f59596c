"""Draw the figures of docs/study.md from the records that studies/fair_rows.py keeps.

python docs/figures/study.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "studies" / "plans"
IMAGES = ROOT / "docs" / "images"
GREY, BLUE, ORANGE = "#9a9a9a", "#1f6f8b", "#d98324"
LABELS = {
    "mean": "mean, hinge",
    "max": "max, hinge",
    "k_max": "k-max, hinge",
    "gem": "GeM, hinge",
    "gpo": "VSE-infinity (GPO, hinge)",
    "mv_vse": "MV-VSE",
    "pvse": "PVSE",
    "k_max_adopt": "k-max, AdOpt",
    "mean_adopt": "mean, AdOpt",
    "gpo_adopt": "GPO, AdOpt",
    "vse_2ad": "VSE+2AD (AdPool, AdOpt)",
}
"""The names of methods in a figure."""
POOLINGS = {
    "k_max_adopt": "k-max, k = {k}",
    "k_max_10": "k-max, k = {k}",
    "vse_2ad": "AdPool",
    "mean_adopt": "mean",
    "gpo_adopt": "GPO",
    "gpo_per_dimension": "GPO for each dimension",
    "gpo_data_dependent": "GPO that sees the values",
    "gpo_interpolation": "GPO by interpolation",
    "gpo_and_cls": "GPO; CLS for sentences",
    "max": "max",
    "gem": "GeM",
    "fs_pool": "FSPool",
    "lip": "LIP",
    "soft_pool": "SoftPool",
    "ada_pool": "AdaPool",
    "attention_pool": "attention",
    "self_attention": "SelfAttn",
    "gcn": "GCN",
    "seq2seq": "Seq2Seq",
}
"""The names of poolings in a figure, by method; an option of the aggregator stands in braces."""
METHODS = {"adopt": "k_max_adopt", "fewer": "k_max"}
"""The methods whose names in a plan are shorter."""
Runs = Mapping[str, Mapping[int, Mapping[int, dict[str, Any]]]]
"""The records by method, number of the setting, and seed."""


def main() -> None:
    """Draw the figures."""
    everything = read("crops_minilm", "crops_minilm_k", "crops_minilm_rate")
    for name, draw, runs in (
        ("settings", settings, everything),
        ("temperatures", temperatures, read("crops_minilm")),
        ("k", by_k, everything),
        ("poolings", poolings, read("crops_minilm_poolings", "crops_minilm_k", "crops_minilm_rate")),
    ):
        figure = Figure(figsize=(7, 4), layout="constrained")
        draw(figure.subplots(), runs)
        figure.savefig(IMAGES / f"study_{name}.png", dpi=120)


def read(*names: str) -> Runs:
    """Read the records of studies; the settings that a later one adds to a method are numbered after those before."""
    runs: defaultdict[str, defaultdict[int, dict[int, dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for place, name in enumerate(names):
        for line in (STUDIES / f"{name}.jsonl").read_text().splitlines():
            record = json.loads(line)
            method, number, seed = record["run"].rsplit("-", 2)
            method = METHODS.get(method, method)
            runs[method][100 * place + int(number)][int(seed[1:])] = record
    return runs


def reached(record: Mapping[str, Any]) -> float:
    """The best validation RSUM of a run."""
    return float(max(record["validation_rsum"]))


def settings(axes: Axes, runs: Runs) -> None:
    """A row for each method: its settings, and the chosen one over all its seeds."""
    chosen = {name: max(some.values(), key=lambda seeds: reached(seeds[0])) for name, some in runs.items()}
    means = {name: float(np.mean([*map(reached, seeds.values())])) for name, seeds in chosen.items()}
    order = sorted(means, key=lambda name: means[name])
    for row, name in enumerate(order):
        tried = [reached(seeds[0]) for seeds in runs[name].values()]
        axes.plot(
            tried, [row] * len(tried), "o", color=GREY, alpha=0.6, markersize=5, label="a setting, seed 0"
        )
        every = [*map(reached, chosen[name].values())]
        spread = float(np.std(every, ddof=1)) if len(every) > 1 else 0.0
        axes.errorbar(
            means[name], row, xerr=spread, fmt="D", color=BLUE, capsize=3, label="the chosen one, all seeds"
        )
    finish_rows(axes, [LABELS[name] for name in order])


def temperatures(axes: Axes, runs: Runs) -> None:
    """AdOpt's temperature under each pooling: the better of its weight decays."""
    for method, label, colour in (
        ("mean_adopt", "mean", GREY),
        ("gpo_adopt", "GPO", BLUE),
        ("vse_2ad", "AdPool", ORANGE),
    ):
        best: defaultdict[float, list[float]] = defaultdict(list)
        for seeds in runs[method].values():
            criterion = seeds[0]["recipe"]["objective"]["ranking"]["criterion"]
            best[criterion["temperature"]].append(reached(seeds[0]))
        line: Sequence[tuple[float, float]] = sorted((key, max(values)) for key, values in best.items())
        axes.plot(*zip(*line, strict=True), "o-", color=colour, label=label)
    finish(axes, "temperature of AdOpt", [0.01, 0.02, 0.05, 0.1])


def by_k(axes: Axes, runs: Runs) -> None:
    """k-max pooling by k under the hinge, all in the setting that suits it, beside the mean of all and GPO."""
    by: dict[int, float] = {}
    for seeds in (*runs["max"].values(), *runs["k_max"].values()):
        recipe = seeds[0]["recipe"]
        optimizer, first = recipe["optimizer"], recipe["training"]["phases"][0]
        if (optimizer["learning_rate"], optimizer["weight_decay"], first["epochs"]) == (1e-3, 0.01, 1):
            by[recipe["image"]["aggregator"].get("k", 1)] = reached(seeds[0])
    axes.plot(*zip(*sorted(by.items()), strict=True), "o-", color=BLUE, label="mean of the k largest")
    for method, label, colour in (("mean", "mean of all", GREY), ("gpo", "GPO", ORANGE)):
        level = max(reached(seeds[0]) for seeds in runs[method].values())
        axes.axhline(level, color=colour, linestyle="--", label=f"{label}, its best setting")
    finish(axes, "k", sorted(by))


def poolings(axes: Axes, runs: Runs) -> None:
    """A row for each pooling with AdOpt at 0.05 and a learning rate of 1e-3: seed 0, and the others that are there."""
    reached_by: dict[str, list[float]] = {}
    for method, label in POOLINGS.items():
        for seeds in runs[method].values():
            recipe = seeds[0]["recipe"]
            criterion, aggregator = recipe["objective"]["ranking"]["criterion"], recipe["image"]["aggregator"]
            if (criterion.get("temperature"), recipe["optimizer"]["learning_rate"]) == (0.05, 1e-3):
                reached_by[label.format(**aggregator)] = [reached(seeds[seed]) for seed in sorted(seeds)]
    order = sorted(reached_by, key=lambda label: reached_by[label][0])
    for row, label in enumerate(order):
        first, *others = reached_by[label]
        axes.plot(
            others, [row] * len(others), "o", color=GREY, alpha=0.6, markersize=5, label="seeds 1 and 2"
        )
        axes.plot(first, row, "D", color=BLUE, label="seed 0")
    finish_rows(axes, order)


def finish_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label a figure that has a row of validation RSUM for each label."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("validation RSUM")
    axes.grid(axis="x", alpha=0.3)
    handles, names = axes.get_legend_handles_labels()
    once: dict[str, Any] = dict(zip(names, handles, strict=True))
    axes.legend(once.values(), once, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))


def finish(axes: Axes, xlabel: str, places: Sequence[float]) -> None:
    """Label a figure of validation RSUM over a logarithmic axis with these places."""
    axes.set(xscale="log", xlabel=xlabel, ylabel="validation RSUM")
    axes.set_xticks(places, [str(place) for place in places])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


if __name__ == "__main__":
    main()
