"""How studies run openvse, as a user would, keep a row of each run, and draw the rows."""

from __future__ import annotations

import argparse
import csv
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openvse.tasks.runs import find_run
from openvse.training.records import METRICS, read_records

ROWS = "rows.csv"


def options_to_train(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    draw: Callable[[list[dict[str, str]], Path], None],
    needed: Sequence[str],
) -> argparse.Namespace | None:
    """Return the options of a study that keeps a row of each run; with ``--draw``, draw the rows and return None.

    Args:
        parser: knows the options of the study's own; ``--out`` and ``--draw`` are added.
        draw: draws rows into a PNG.
        needed: the options without which nothing can be trained.
    """
    parser.add_argument("--out", type=Path, required=True, help=f"folder of the runs and of {ROWS}")
    parser.add_argument("--draw", type=Path, help=f"draw {ROWS} as a PNG, and train nothing")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.draw is not None:
        draw(read_rows(options.out / ROWS), options.draw)
        return None
    if None in (getattr(options, name) for name in needed):
        *most, last = (f"--{name}" for name in needed)
        parser.error(f"give {', '.join(most)} and {last}, or --draw")
    return options


def openvse(*words: str) -> str:
    """Run a command and return what it prints; end with its words and its output if it fails."""
    command = [sys.executable, "-m", "openvse", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"openvse {shlex.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def train_to_the_end(run: Path, *words: str) -> None:
    """Train a run, or go on with it; leave it alone if it is finished."""
    started = (run / "last.pt").exists()
    if not started or find_run(str(run)).unfinished():
        openvse("train", *words, "training.threads=1", "--out", str(run), *["--resume"] * started)


def validations(run: Path) -> dict[int, float]:
    """Return the score that validation chooses by, by epoch: RSUM or accuracy; epoch 0 is the start."""
    read = read_records(run / METRICS)
    records = [*read.of("before"), *read.of("validation")]
    return {record["epoch"]: record["rsum" if "rsum" in record else "accuracy"] for record in records}


def cost_of(run: Path) -> tuple[str, str, str]:
    """Return the minutes of a run, its greatest memory in MB and its commit; what is not known is empty."""
    records = read_records(run / METRICS)
    minutes = "" if (seconds := records.seconds()) is None else f"{seconds / 60:.1f}"
    memory = str(round((records.memory() or 0) / 1e6) or "")
    commit = str(next(iter(records.of("environment")), {}).get("commit") or "")
    return minutes, memory, commit[:7]


def append_row(path: Path, columns: Sequence[str], row: Sequence[object]) -> None:
    """Add a row to a CSV file, which begins with the names of its columns."""
    new = not path.exists()
    with path.open("a", newline="") as lines:
        csv.writer(lines).writerows([columns, row] if new else [row])


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows that are there."""
    if not path.exists():
        return []
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def draw_line(axes: Any, values: Mapping[float, Sequence[float]], label: str, colour: str) -> None:
    """Draw the mean of the values at each place, with their standard deviation."""
    if values:
        places = sorted(values)
        spread = [float(np.std(values[place], ddof=1)) if len(values[place]) > 1 else 0.0 for place in places]
        axes.errorbar(
            places,
            [np.mean(values[place]) for place in places],
            spread,
            label=label,
            color=colour,
            marker="o",
            capsize=3,
            alpha=0.85,
        )
