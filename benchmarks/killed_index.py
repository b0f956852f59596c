"""Kill a process that adds, updates, removes and compacts, and one that upgrades earlier formats, at random moments.

The index must open, and hold what it stored.

python benchmarks/killed_index.py [--kills 30]
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "tests" / "search")]

from tests.search.test_killed_index import kill_once, kill_upgrade_once  # noqa: E402


def main() -> None:
    """Kill so often, each time with another sequence of changes; an index that lost something is an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    arguments = parser.parse_args()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.kills):
            kill_once(Path(folder, str(number)), number, draw.uniform(0.02, 1.0))
            for version in (1, 2):
                place = Path(folder, f"{number} of {version}")
                kill_upgrade_once(place, version, draw.uniform(0.0, 0.2))
                shutil.rmtree(place)
            print(
                f"kill {number + 1} of {arguments.kills}: the indexes opened, and nothing stored was lost",
                flush=True,
            )


if __name__ == "__main__":
    main()
