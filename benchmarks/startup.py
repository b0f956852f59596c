"""How long a command takes to answer before any work: a fresh process each time.

python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from _measure import environment, median_times, table

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import openvse": ["-c", "import openvse"],
    "openvse --help": ["-c", "from openvse.cli import main; main()", "--help"],
    "import torch (for comparison)": ["-c", "import torch"],
}


def run(arguments: list[str]) -> None:
    """Run one interpreter to its end."""
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Print the table."""
    seconds = median_times([partial(run, arguments) for arguments in COMMANDS.values()], repeats=7)
    print(environment())
    print(table(["command", "median, s"], list(zip(COMMANDS, seconds, strict=True))))


if __name__ == "__main__":
    main()
