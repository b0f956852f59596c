"""The search half in an environment without PyTorch: ``make wheel-check`` runs it there.

``python -I tests/distribution/search_alone.py EXPORT FOLDER`` indexes drawn images with an exported model, searches,
finds duplicates and serves, and prints the size of what is installed.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from importlib.util import find_spec
from pathlib import Path

MISSING = ("torch", "transformers", "accelerate", "safetensors", "onnx", "onnxscript")
INSTALL = "pip install 'openvse[train]'"


def main() -> None:
    """Check the environment, and print its size."""
    export, folder = Path(sys.argv[1]), Path(sys.argv[2])
    assert [name for name in MISSING if find_spec(name)] == []
    from PIL import Image

    photos, index = folder / "photos", folder / "index"
    photos.mkdir(parents=True)
    shades = Image.linear_gradient("L").convert("RGB").resize((60, 40))
    for name, colour in (("red", "red"), ("green", "green"), ("blue", "blue"), ("copy", "red")):
        Image.blend(shades, Image.new("RGB", (60, 40), colour), 0.8).save(photos / f"{name}.png")
    openvse("index", export, photos, "--out", index)
    found = openvse("search", index, "green", "--model", export, "--output", "paths", "-k", "1")
    assert Path(found.strip()).name == "green.png", found
    for source in (photos, index):
        (group,) = json.loads(openvse("duplicates", source, "--json"))["result"]["groups"]
        assert {Path(group["keep"]).name, *(Path(each).name for each in group["others"])} == {"red.png", "copy.png"}
    serve(index, export)
    refused = subprocess.run([program(), "train", "folder"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "") and INSTALL in refused.stderr, refused.stderr
    assert "pip install" in openvse("--help")
    site = Path(sysconfig.get_path("purelib"))
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and "pip" not in path.parts)
    print(f"openvse without its extra train, with all that it needs: {size / 1e6:.0f} MB")


def program() -> str:
    """Return the command of the environment."""
    return str(Path(sysconfig.get_path("scripts"), "openvse"))


def openvse(*words: object) -> str:
    """Run a command to its end, and return what it prints."""
    command = [program(), *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def serve(index: Path, export: Path) -> None:
    """Ask a server on a free port for its page and for hits, and stop it as Ctrl-C does."""
    command = [program(), "serve", str(index), "--model", str(export), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = next(found[1] for line in process.stderr if (found := re.search(r" at (http://\S+/)", line)))
            page = urllib.request.urlopen(url, timeout=60).read()
            hits = json.load(urllib.request.urlopen(f"{url}api/search?q=blue&top_k=1", timeout=60))["hits"]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
    assert b"<html" in page and hits[0]["id"] == "blue.png" and process.returncode == 0, hits


if __name__ == "__main__":
    main()
