"""Draw the figures of docs/what_to_use.md and docs/studies/evidence.md from the records of studies/fair_rows.py.

python docs/figures/study.py
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes

from openvse.output.figures import new_figure, styled

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "studies" / "plans"
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 4.0, 2.4
"""The size of a figure in inches: as wide as a phone."""
INK, GREY, BLUE, ORANGE = "#24292f", "#8c8c8c", "#1f6f8b", "#c2630a"
DARK = {INK: "#e6edf3", GREY: "#9a9a9a", BLUE: "#5fb8d8", ORANGE: "#f0a050"}
"""What the colours become where a page is dark."""
STYLE = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "lines.markersize": 5.0,
}
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
    added = read("crops_minilm_poolings", "crops_minilm_k", "crops_minilm_rate")
    save("images", by_images)
    save("sides", sides)
    save("words", words)
    save("windows", windows)
    save("bank", query_bank)
    save("settings", lambda axes: settings(axes, everything), height=3.4)
    save("temperatures", lambda axes: temperatures(axes, read("crops_minilm")))
    save("k", lambda axes: by_k(axes, everything))
    save("poolings", lambda axes: poolings(axes, added), height=4.6)


def save(name: str, draw: Callable[[Axes], None], height: float = HEIGHT) -> None:
    """Draw a figure and write it as an SVG without a background, whose colours follow the page's."""
    with styled(), rc_context(STYLE):
        figure = new_figure(WIDTH, height)
        draw(figure.subplots())
        written = StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    light, dark = (
        "".join(f"--{light[1:]}:{shown[colour]};" for light, colour in zip(DARK, DARK, strict=True))
        for shown in ({each: each for each in DARK}, DARK)
    )
    style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    colours = "|".join(DARK)
    text = re.sub(f"({colours})", lambda found: f"var(--{found[0][1:]})", written.getvalue())
    (IMAGES / f"study_{name}.svg").write_text(re.sub(r"(<svg [^>]*>)", rf"\1{style}", text, count=1))


def read(*names: str) -> Runs:
    """Read the records of studies; the settings that a later one adds to a method are numbered after those before."""
    runs: defaultdict[str, defaultdict[int, dict[int, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
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
        axes.plot(tried, [row] * len(tried), "o", color=GREY, alpha=0.6, markersize=5, label="a setting, seed 0")
        every = [*map(reached, chosen[name].values())]
        spread = float(np.std(every, ddof=1)) if len(every) > 1 else 0.0
        axes.errorbar(means[name], row, xerr=spread, fmt="D", color=BLUE, capsize=3, label="the chosen one, all seeds")
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
    finish_places(axes, "temperature of AdOpt", [0.01, 0.02, 0.05, 0.1])


def by_k(axes: Axes, runs: Runs) -> None:
    """k-max pooling by k under the hinge, all in the setting that suits it, beside the mean of all and GPO."""
    by: dict[int, float] = {}
    for seeds in (*runs["max"].values(), *runs["k_max"].values()):
        recipe = seeds[0]["recipe"]
        optimizer, first = recipe["optimizer"], recipe["training"]["phases"][0]
        if (optimizer["learning_rate"], optimizer["weight_decay"], first["epochs"]) == (1e-3, 0.01, 1):
            by[recipe["image"]["aggregator"].get("k", 1)] = reached(seeds[0])
    axes.plot(*zip(*sorted(by.items()), strict=True), "o-", color=BLUE, label="the k largest")
    for method, label, colour in (("mean", "mean", GREY), ("gpo", "GPO", ORANGE)):
        level = max(reached(seeds[0]) for seeds in runs[method].values())
        axes.axhline(level, color=colour, linestyle="--", label=label)
    finish_places(axes, "k", sorted(by))


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
        axes.plot(others, [row] * len(others), "o", color=GREY, alpha=0.6, markersize=5, label="seeds 1 and 2")
        axes.plot(first, row, "D", color=BLUE, label="seed 0")
    finish_rows(axes, order)


def by_images(axes: Axes) -> None:
    """Test RSUM of three recipes by the number of images in a folder: the mean of its draws, and each draw."""
    k_max = "image.aggregator='{name: k_max, k: 5}' text.aggregator=max optimizer.learning_rate"
    for label, colour, chosen in (
        ("folder", BLUE, lambda setting: setting == "folder data.text_features=texts"),
        ("k-max; max", ORANGE, lambda setting: k_max in setting and "temperature" not in setting),
        ("GPO", GREY, lambda setting: setting == "gpo_adopt/folder_cpu data.text_features=texts"),
    ):
        drawn: defaultdict[int, list[float]] = defaultdict(list)
        with (ROOT / "studies" / "folder_results.csv").open() as file:
            for row in csv.DictReader(file):
                if row["source"] == "flickr8k" and chosen(row["setting"]):
                    drawn[int(row["size"])].append(float(row["test_rsum"]))
        axes.plot([*drawn], [np.mean(values) for values in drawn.values()], "o-", color=colour, label=label)
    finish_places(axes, "images in the folder", [20, 100, 800, 5000])
    axes.set_ylabel("test RSUM")


def sides(axes: Axes) -> None:
    """Poolings for the images: beside the same pooling for the sentences, and beside max pooling."""
    same = read("crops_minilm_poolings", "crops_minilm_rate", "crops_minilm_k")
    mixed = read("crops_minilm_text_max", "crops_minilm_k_sides")
    rows = {
        label: (at_the_rate(same[method]), at_the_rate(mixed[other]))
        for label, method, other in (
            ("LIP", "lip", "lip"),
            ("mean", "mean_adopt", "mean"),
            ("SoftPool", "soft_pool", "soft_pool"),
            ("GPO", "gpo_adopt", "gpo"),
            ("k-max, k = 5", "k_max_adopt", "5_and_max_adopt"),
        )
    }
    dumbbells(axes, rows, ("the same for sentences", "max for sentences"))
    axes.set(xlabel="validation RSUM", ylabel="pooling of images")


def at_the_rate(runs: Mapping[int, Mapping[int, dict[str, Any]]]) -> float:
    """What AdOpt at 0.05 reaches with a learning rate of 1e-3 and seed 0; k-max with k = 5."""
    for seeds in runs.values():
        recipe = seeds[0]["recipe"]
        temperature = recipe["objective"]["ranking"]["criterion"].get("temperature")
        k = recipe["image"]["aggregator"].get("k", 5)
        if (temperature, recipe["optimizer"]["learning_rate"], k) == (0.05, 1e-3, 5):
            return reached(seeds[0])
    raise ValueError("there is no run with AdOpt at 0.05, a rate of 1e-3 and k = 5")


def words(axes: Axes) -> None:
    """Poolings under the hinge, each in its best setting, with words of a frozen MiniLM and with learned ones."""
    order = ["max", "mean", "gpo", "k_max"]
    for names, label, colour in (
        (("crops_bigru_hinge", "crops_bigru_others"), "words learned by a BiGRU", ORANGE),
        (("crops_minilm",), "a frozen MiniLM", BLUE),
    ):
        runs = read(*names)
        for row, method in enumerate(order):
            chosen = max(runs[method].values(), key=lambda seeds: reached(seeds[0]))
            values = [*map(reached, chosen.values())]
            axes.plot(values, [row] * len(values), "o", color=colour, label=label, alpha=0.8)
    finish_rows(axes, ["max", "mean", "GPO", "k-max, k = 5"])


def windows(axes: Axes) -> None:
    """The best pooling of cells and of windows, with a frozen network and with one that learns; seed 0."""
    cells, one_pass, tuned = read("grids_minilm"), read("features_minilm"), read("finetuned_minilm")
    each = read("crops_minilm_k_sides")["5_and_max_adopt"]
    rows = {
        "49 cells": (best(cells, "gpo"), best(tuned, "gpo")),
        "26 windows in one pass": (best(one_pass, "one_pass_k_max"), best(tuned, "towers")),
        "26 windows, each by itself": (at_the_rate(each), None),
    }
    dumbbells(axes, rows, ("networks frozen", "fine-tuned"))
    axes.set(xlabel="validation RSUM")


def best(runs: Runs, method: str) -> float:
    """What the best setting of a method reaches with seed 0."""
    return max(reached(seeds[0]) for seeds in runs[method].values())


def query_bank(axes: Axes) -> None:
    """Test RSUM of three seeds with and without a query bank of the training captions and images."""
    for bank, label, colour in (("", "as they are", GREY), ("train", "with a query bank", BLUE)):
        for row, method in enumerate(order := ["k-max, AdOpt", "PCME++"]):
            values = [
                record["metrics"]["rsum"]
                for record in map(json.loads, (STUDIES / "query_bank.jsonl").read_text().splitlines())
                if (record["method"], record["query_bank"]) == (method, bank)
            ]
            axes.plot(values, [row] * len(values), "o", color=colour, label=label, alpha=0.8)
    finish_rows(axes, order)
    axes.set_xlabel("test RSUM")


def dumbbells(axes: Axes, rows: Mapping[str, tuple[float, float | None]], names: tuple[str, str]) -> None:
    """A row of validation RSUM for each label: two values and the line between them."""
    for row, (before, after) in enumerate(rows.values()):
        if after is not None:
            axes.plot([before, after], [row, row], "-", color=GREY, alpha=0.6)
            axes.plot(after, row, "D", color=BLUE, label=names[1])
        axes.plot(before, row, "o", color=GREY, label=names[0])
    finish_rows(axes, [*rows])


def finish_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label a figure that has a row of validation RSUM for each label."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.set_xlabel("validation RSUM")
    axes.grid(axis="x", alpha=0.3)
    legend_above(axes, 2)


def finish_places(axes: Axes, xlabel: str, places: Sequence[float]) -> None:
    """Label a figure of validation RSUM over a logarithmic axis with these places."""
    axes.set(xscale="log", xlabel=xlabel, ylabel="validation RSUM")
    axes.set_xticks(places, [f"{place:,g}" for place in places])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    legend_above(axes, 3)


def legend_above(axes: Axes, columns: int) -> None:
    """Put a legend of every label above a figure."""
    handles, names = axes.get_legend_handles_labels()
    once: dict[str, Any] = dict(zip(names, handles, strict=True))
    axes.figure.legend(once.values(), once, ncols=columns, loc="outside upper center", handlelength=1.5)


if __name__ == "__main__":
    main()
