"""The metadata of an installed openvse for a checkout that only lies on Python's path: its entry points.

python -m tests.metadata FOLDER
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def write_metadata(folder: Path) -> None:
    """Write them into a folder, which belongs on Python's path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in entries.items()))
    ]
    info = folder / "openvse-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: openvse\nVersion: 0\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_metadata(Path(sys.argv[1]))
