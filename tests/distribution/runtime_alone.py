"""The runtime distribution in an environment of its own: ``make runtime-check`` runs it there.

It writes an exported model, indexes drawn images, searches, and prints the size of what is installed.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

MISSING = ("torch", "transformers", "accelerate", "safetensors")


def main() -> None:
    """Check the environment, and print its size."""
    export, folder = Path(sys.argv[1]), Path(sys.argv[2])
    assert [name for name in MISSING if find_spec(name)] == []
    from PIL import Image

    photos = folder / "photos"
    photos.mkdir(parents=True)
    for name in ("red", "green", "blue"):
        Image.new("RGB", (60, 40), name).save(photos / f"{name}.png")
    command = str(Path(sysconfig.get_path("scripts"), "openvse"))
    subprocess.run([command, "index", str(export), str(photos), "--out", str(folder / "index")], check=True)
    words = ["search", str(folder / "index"), "red", "--model", str(export), "--output", "paths", "-k", "1"]
    found = subprocess.run([command, *words], check=True, capture_output=True, text=True)
    assert Path(found.stdout.strip()).name == "red.png", found.stdout
    site = Path(sysconfig.get_path("purelib"))
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and "pip" not in path.parts)
    print(f"openvse-runtime with all that it needs: {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
