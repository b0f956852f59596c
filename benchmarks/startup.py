"""How long a command takes to answer before any work, and a cold search: a fresh process each time.

python benchmarks/startup.py [--index INDEX] [--beside PYTHON]

``--beside`` names the Python of another environment, such as one with an older openvse. Its processes take turns with
those of this one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path

from _measure import environment, median_times, table

_OPENVSE = ["-c", "from openvse.cli import main; main()"]
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import openvse": ["-c", "import openvse"],
    "openvse --help": [*_OPENVSE, "--help"],
    "import torch (for comparison)": ["-c", "import torch"],
}


def run(arguments: list[str]) -> None:
    """Run one interpreter to its end."""
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", type=Path, help="an index to search, with the towers beside it")
    parser.add_argument("--beside", help="the Python of another environment")
    given = parser.parse_args()
    commands = dict(COMMANDS)
    if given.index:
        commands["openvse search INDEX 'a dog'"] = [*_OPENVSE, "search", str(given.index), "a dog"]
    pythons = [sys.executable, *([given.beside] if given.beside else [])]
    work = [partial(run, [python, *arguments]) for arguments in commands.values() for python in pythons]
    seconds = median_times(work, repeats=7)
    print(environment())
    if not given.beside:
        print(table(["command", "median, s"], list(zip(commands, seconds, strict=True))))
        return
    rows = [
        (name, here, there, here / there)
        for name, here, there in zip(commands, seconds[::2], seconds[1::2], strict=True)
    ]
    print(table(["command", "here, s", "beside, s", "here / beside"], rows))


if __name__ == "__main__":
    main()
