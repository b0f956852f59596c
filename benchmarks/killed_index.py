"""Kill a process that adds, updates, removes and compacts, at random moments; the index must hold what it stored.

python benchmarks/killed_index.py [--kills 30]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.search.test_killed_index import kill_once


def main() -> None:
    """Kill so often, each time with another sequence of changes; an index that lost something is an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    arguments = parser.parse_args()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.kills):
            kill_once(Path(folder, str(number)), number, draw.uniform(0.02, 1.0))
            print(f"kill {number + 1} of {arguments.kills}: the index opened, and nothing stored was lost")


if __name__ == "__main__":
    main()
