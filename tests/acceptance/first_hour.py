"""The first hour of a new user, and a bad day: what openvse does with each, and whether it is what it should do.

python -m tests.acceptance.first_hour                         # all cases, a few minutes
python -m tests.acceptance.first_hour --only "disk" "column"  # the cases whose point holds one of these
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.acceptance.first_hour_cases import CASES
from tests.acceptance.stage import Outcome, Stage

MOST_LETTERS = 150
"""Of a sentence in the table."""


def main(arguments: Sequence[str]) -> int:
    """Print the table, and return 1 if a point is not as wanted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="points that hold one of these words")
    parser.add_argument("--json", action="store_true", help="print the outcomes as one JSON document")
    options = parser.parse_args(arguments)
    points = [point for point in CASES if any(word in point for word in options.only)]
    now = try_all(points)
    if options.json:
        print(json.dumps({point: asdict(outcome) for point, outcome in now.items()}))
        return 0
    print(as_table(now))
    return 0 if all(outcome.good for outcome in now.values()) else 1


def try_all(points: Sequence[str]) -> dict[str, Outcome]:
    """Try the points one after the other in a temporary folder; what fails to run is an outcome, too."""
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="openvse-trial-") as place:
        stage = Stage(Path(place).resolve())
        for point in points:
            print(f"{point} ...", file=sys.stderr, flush=True)
            try:
                outcome = CASES[point](stage)
            except Exception as error:  # whatever happens is what happened
                outcome = Outcome(False, f"cannot be tried: {type(error).__name__}: {error}")
            outcomes[point] = Outcome(outcome.good, shown(outcome.seen, stage.place))
    return outcomes


def shown(seen: str, place: Path) -> str:
    """Return a sentence for a cell of the table: in one line, not too long, without the temporary folder."""
    text = " ".join(seen.replace(f"{place}/", "").replace(str(place), ".").split()).replace("|", "\\|")
    if len(text) > MOST_LETTERS:
        text = text[:MOST_LETTERS].rsplit(" ", 1)[0] + " ..." + ("`" if text.count("`", 0, MOST_LETTERS) % 2 else "")
    return re.sub(r"^[a-z](?=\w*[ :])", lambda first: first.group().upper(), text)


def as_table(now: dict[str, Outcome]) -> str:
    """Return the Markdown table: a line for each point, and how many are as wanted."""
    lines = ["| point | now | as wanted |", "| --- | --- | --- |"]
    for point, outcome in now.items():
        lines.append(f"| {point} | {outcome.seen} | {'yes' if outcome.good else '**no**'} |")
    good = sum(outcome.good for outcome in now.values())
    return "\n".join([*lines, "", f"{good} of {len(now)} points are as wanted."])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
