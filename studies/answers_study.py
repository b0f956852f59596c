"""What score attention gains over the mean when it answers questions, by the number of questions to learn from.

python studies/answers_study.py --flickr8k FLICKR8K --grids grids --out study
python studies/answers_study.py --out study --draw answers_study.png

The questions are those of ``caption_questions.py``, of shares of Flickr8k's training images; validation and test are
whole. Each share is learned by score attention, by the mean of its attended tokens, and from the questions without the
images, with every seed. The smallest share gets more epochs, since they are shorter. Validation chooses the epoch.

``rows.csv`` gets a row for each run that is finished; the test is read once. A run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import caption_questions
from _commands import (
    ROWS,
    append_row,
    cost_of,
    draw_line,
    openvse,
    options_to_train,
    read_rows,
    train_to_the_end,
    validations,
)
from openvse_papers.datasets.published import open_question_folder

COLUMNS = (
    *("way", "share", "questions", "seed", "validation_accuracy", "best_epoch", "test_accuracy"),
    *("test_object", "test_color", "test_number", "minutes", "commit"),
)
ATTENTION = "score attention"
GRIDS = "score_attention/daquar_grids_cpu"
WAYS = {
    ATTENTION: [GRIDS],
    "mean": [GRIDS, "fusion={name: pooled, aggregator: mean}"],
    "question alone": ["score_attention/daquar_question_only"],
}
"""A recipe, and what differs from it."""
COLOURS = ("#8c2f39", "#1f6f8b", "#8a8a8a")


def main(arguments: Sequence[str]) -> None:
    """Make the runs that are not finished, and add their rows; or draw the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--flickr8k", type=Path, help="folder of the data set")
    parser.add_argument("--grids", type=Path, help="feature store of its images: efficientnet_lite0")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=[*WAYS])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.25, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    if (options := options_to_train(parser, arguments, draw, needed=("flickr8k", "grids"))) is None:
        return
    rows = options.out / ROWS
    for seed in options.seeds:
        for share in options.shares:
            questions = options.out / "questions" / f"{share:g}_s{seed}"
            if not (questions / "metadata.jsonl").exists():
                caption_questions.main(
                    [str(options.flickr8k), str(questions), "--share", str(share), "--seed", str(seed)]
                )
            for way in options.ways:
                known = {(row["way"], float(row["share"]), int(row["seed"])) for row in read_rows(rows)}
                if (way, share, seed) not in known:
                    run = options.out / f"{way.replace(' ', '_')}_{share:g}_s{seed}"
                    train(run, way, share, seed, questions, options.grids)
                    row = measure(run, way, share, seed, questions, options.grids)
                    append_row(rows, COLUMNS, row)
                    print(*row, flush=True)


def train(run: Path, way: str, share: float, seed: int, questions: Path, grids: Path) -> None:
    """Train a model, or go on with it."""
    phases = f"[{{epochs: {4 if share > 0.1 else 8}}}, {{epochs: 2, learning_rate: 5.0e-5}}]"
    features = [f"data.features={grids}"] * (GRIDS in WAYS[way])
    source = [f"data.source=question_folder:{questions}", "data.allow_outside=true"]  # its images are links
    train_to_the_end(run, *WAYS[way], *source, *features, f"seed={seed}", f"training.phases={phases}")


def measure(run: Path, way: str, share: float, seed: int, questions: Path, grids: Path) -> tuple[object, ...]:
    """Read the test once, and return the row of a run."""
    features = ["--features", str(grids)] * (GRIDS in WAYS[way])
    words = [str(run / "best"), "--on", f"question_folder:{questions}", "--allow-outside", *features]
    said = openvse("evaluate", *words, "--json", "-q")
    scores = json.loads(said)["result"]["report"]["scores"]
    test = [scores["accuracy"], *(scores[f"accuracy_{kind}"] for kind in ("object", "color", "number"))]
    accuracies = validations(run)
    best = max(accuracies, key=lambda epoch: accuracies[epoch])
    minutes, _, commit = cost_of(run)
    count = len(open_question_folder(questions).split("train"))
    return (
        *(way, f"{share:g}", count, seed, f"{accuracies[best]:.2f}", best),
        *(f"{score:.2f}" for score in test),
        *(minutes, commit),
    )


def draw(rows: Sequence[dict[str, str]], target: Path) -> None:
    """Draw test accuracy by the number of questions: a line for each way, with the spread over its seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    ticks: set[float] = set()
    for way, colour in zip(WAYS, COLOURS, strict=True):
        counts: dict[str, list[float]] = {}
        accuracies: dict[str, list[float]] = {}
        for row in rows:
            if row["way"] == way:
                counts.setdefault(row["share"], []).append(float(row["questions"]))
                accuracies.setdefault(row["share"], []).append(float(row["test_accuracy"]))
        line = {mean(counts[share]): accuracies[share] for share in counts}
        draw_line(axes, line, label=way, colour=colour)
        ticks |= {*line}
    axes.set(xscale="log", xlabel="questions to learn from", ylabel="test accuracy, %")
    axes.set_xticks(sorted(ticks), [f"{tick:,.0f}" for tick in sorted(ticks)])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main(sys.argv[1:])
