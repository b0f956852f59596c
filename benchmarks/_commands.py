"""How benchmarks that train run openvse, as a user would, and keep a row of each run."""

from __future__ import annotations

import csv
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def openvse(*words: str) -> str:
    """Run a command and return what it prints; end with its words and its output if it fails."""
    command = [sys.executable, "-m", "openvse.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"openvse {shlex.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


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
