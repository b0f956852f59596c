"""The first hour of a new user, and a bad day: what openvse does with each, and whether it is what it should do.

python -m tests.acceptance.first_hour                            # drawn shapes, about five minutes
python -m tests.acceptance.first_hour --stamps                   # the drawings of Debian's tuxpaint-stamps-default
python -m tests.acceptance.first_hour --before OTHER/src         # another version beside this one
python -m tests.acceptance.first_hour --only "disk" "checksum"   # the cases whose point holds one of these
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.acceptance.bad_day_cases import BAD_DAY
from tests.acceptance.first_hour_cases import FIRST_HOUR
from tests.acceptance.stage import STAMPS, Outcome, Stage
from tests.acceptance.wider_cases import WIDER

CASES = FIRST_HOUR | WIDER | BAD_DAY
"""What is tried, by the point of the table."""

ROOT = Path(__file__).parents[2]

MOST_LETTERS = 150
"""Of a sentence in the table."""


def main(arguments: Sequence[str]) -> int:
    """Print the table, and return 1 if a point is not as wanted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--stamps", action="store_true", help=f"use the captioned drawings in {STAMPS}")
    parser.add_argument(
        "--before", type=Path, metavar="PYTHONPATH", help="src/ of another version of openvse"
    )
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="points that hold one of these words"
    )
    parser.add_argument("--json", action="store_true", help="print the outcomes as one JSON document")
    options = parser.parse_args(arguments)
    if options.stamps and not STAMPS.is_dir():
        parser.error(f"there are no drawings in {STAMPS}: install Debian's tuxpaint-stamps-default")
    points = [point for point in CASES if any(word in point for word in options.only)]
    now = try_all(points, options.stamps)
    if options.json:
        print(json.dumps({point: asdict(outcome) for point, outcome in now.items()}))
        return 0
    before = None if options.before is None else other_version(options.before, arguments)
    print(as_table(now, before))
    return 0 if all(outcome.good for outcome in now.values()) else 1


def try_all(points: Sequence[str], stamps: bool) -> dict[str, Outcome]:
    """Try the points one after the other in a temporary folder; what fails to run is an outcome, too."""
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="openvse-trial-") as place:
        stage = Stage(Path(place).resolve(), stamps)
        for point in points:
            print(f"{point} ...", file=sys.stderr, flush=True)
            try:
                outcome = CASES[point](stage)
            except Exception as error:  # whatever happens is what happened
                outcome = Outcome(False, f"cannot be tried: {type(error).__name__}: {error}")
            outcomes[point] = Outcome(outcome.good, shown(outcome.seen, stage.place))
    return outcomes


def other_version(source: Path, arguments: Sequence[str]) -> dict[str, Outcome]:
    """Try the same points with another version of openvse, in a process of its own."""
    words = [*arguments, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
    command = [sys.executable, "-m", "tests.acceptance.first_hour", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return {point: Outcome(**outcome) for point, outcome in json.loads(done.stdout).items()}


def shown(seen: str, place: Path) -> str:
    """Return a sentence for a cell of the table: in one line, not too long, without the temporary folder."""
    text = " ".join(seen.replace(f"{place}/", "").replace(str(place), ".").split()).replace("|", "\\|")
    if len(text) > MOST_LETTERS:
        text = (
            text[:MOST_LETTERS].rsplit(" ", 1)[0]
            + " ..."
            + ("`" if text.count("`", 0, MOST_LETTERS) % 2 else "")
        )
    return re.sub(r"^[a-z](?=\w*[ :])", lambda first: first.group().upper(), text)


def as_table(now: dict[str, Outcome], before: dict[str, Outcome] | None) -> str:
    """Return the Markdown table: a line for each point, and how many are as wanted."""
    header = ["point", *(["before"] if before else []), "now", "as wanted"]
    rows = [header, ["---"] * len(header)]
    rows += [
        [point, *([before[point].seen] if before else []), outcome.seen, "yes" if outcome.good else "**no**"]
        for point, outcome in now.items()
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    counts = f"{sum(outcome.good for outcome in now.values())} of {len(now)} points are as wanted"
    counts += f"; before: {sum(outcome.good for outcome in before.values())}." if before else "."
    return "\n".join([*lines, "", counts])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
