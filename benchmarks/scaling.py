"""What a collection takes: time, disk and memory of each step, computed from the slopes of the other benchmarks.

``python benchmarks/scaling.py`` prints the tables of docs/studies/scaling.md, and ``--images N --captions M`` those of
your own collection. Nothing is measured for them: each slope says which benchmark measured it.

``--measure FOLDER`` trains on drawn features of that size, which it writes to the folder first (COCO's regions: 18 GB),
and measures the beginning of a run, its speed, its memory, a resumed run, validation and ``evaluate``:

python benchmarks/scaling.py --measure FOLDER --images 113287 --captions 566435 --held-out 5000
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOUR, GB = 3600.0, 1e9
CORES = 2  # of the machine on which all slopes were measured


@dataclass(frozen=True)
class Collection:
    """Images with captions.

    Attributes:
        name: for the table.
        images: how many.
        captions: of all images together.
    """

    name: str
    images: float
    captions: float


@dataclass(frozen=True)
class Slope:
    """What a step takes for each image or caption.

    Attributes:
        step: what is done.
        unit: of the value.
        value: computes it for a collection.
    """

    step: str
    unit: str
    value: Callable[[Collection], float]


def per_image(step: str, unit: str, value: float) -> Slope:
    """Return a slope in the number of images."""
    return Slope(step, unit, lambda collection: value * collection.images)


def per_caption(step: str, unit: str, value: float) -> Slope:
    """Return a slope in the number of captions."""
    return Slope(step, unit, lambda collection: value * collection.captions)


SLOPES = (
    per_image("extract grids, EfficientNet-Lite0 (49.5 images/s)", "core hours", CORES / 49.5 / HOUR),
    per_image("store of grids, 49 x 1280, float16", "GB", 49 * 1280 * 2 / GB),
    per_image("store of 26 windows, 1280, float16", "GB", 26 * 1280 * 2 / GB),
    per_caption("store of MiniLM's states (10.9 kB a caption)", "GB", 10.9e3 / GB),
    per_image("memory to find items of a store (190 bytes)", "GB", 190 * 2**20 / 1e6 / GB),
    per_caption("train one epoch (128 pairs in 0.213 s, bf16)", "core hours", CORES * 0.213 / 128 / HOUR),
    per_image("index, or encode (63.5 images/s)", "core hours", CORES / 63.5 / HOUR),
    per_image("index on disk, 512, float16", "GB", (2 * 512 + 92) / GB),
    per_image("the same with the engine int8", "GB", (2 * 512 + 92 + 540) / GB),
    per_image("index in memory, float16, with its ids", "GB", (2 * 512 + 470) / GB),
    per_image("open an index (3.4 s a million)", "s", 3.41e-6),
    per_image("index again when nothing is new (5.5 µs a file)", "s", 0.548 / 1e5),
    per_image("one exact query, 512, float16", "s", 0.047e-6),
    per_image("one query with the engine int8", "s", 0.0419e-6),
)

COLLECTIONS = (
    Collection("COCO", 123_287, 616_767),
    Collection("10 million", 1e7, 1e7),
    Collection("1 billion", 1e9, 1e9),
)


def table(collections: Sequence[Collection]) -> str:
    """Return a table in Markdown with a row for each step."""
    header = ["step", "unit", *(collection.name for collection in collections)]
    rows = [header, ["---", "---", *("---:" for _ in collections)]]
    rows += [
        [slope.step, slope.unit, *(_rounded(slope.value(collection)) for collection in collections)] for slope in SLOPES
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _rounded(value: float) -> str:
    """Return two significant digits."""
    return f"{float(f'{value:.2g}'):,.10g}"


# What a run of that size takes, measured.


@dataclass(frozen=True)
class Drawn:
    """Where drawn data are, and how many of them there are.

    Attributes:
        held_out: images for validation, and as many for the test.
        steps: of training that are timed.
    """

    folder: Path
    images: int
    captions: int
    held_out: int
    regions: int
    width: int
    steps: int

    def write(self) -> None:
        """Write a CSV and a store in float16; each image has regions of its own, by turning one block of numbers."""
        import numpy as np
        import torch

        from openvse.features.extract import FeatureStoreWriter

        random, total = np.random.default_rng(0), self.images + 2 * self.held_out
        words = np.array([f"word{number}" for number in range(10_000)])
        each, lines = max(1, self.captions // self.images), ["file_name,caption,split"]
        block = torch.from_numpy(random.standard_normal((self.regions * 64, self.width)).astype(np.float16))
        with FeatureStoreWriter(self.folder / "features", fingerprint="drawn", dim=self.width) as writer:
            for number in range(total):
                held_out = number - self.images
                split = "train" if held_out < 0 else ("validation", "test")[held_out // self.held_out]
                drawn = words[(random.pareto(1.0, (each, 11)) * 3).astype(np.int64) % len(words)]
                lines += [f"{number:07}.jpg,{' '.join(row)},{split}" for row in drawn.tolist()]
                at = int(random.integers(len(block) - self.regions))
                writer.add(f"{number:07}.jpg", block[at : at + self.regions].roll(number, dims=1))
        (self.folder / "captions.csv").write_text("\n".join(lines) + "\n")

    def train(self, name: str, limit: int | None, resume: bool) -> dict[str, float]:
        """Train the timed steps, or all of an epoch on ``limit`` images; return seconds, pairs a second and memory."""
        from openvse.tasks.recipes import load_recipe
        from openvse.tasks.run import run_recipe
        from openvse.training.records import EpochReport, Silent, StepReport

        began, found, most = time.perf_counter(), dict[str, float](), self.steps

        class Watch(Silent):
            def step(self, report: StepReport) -> None:
                found.setdefault("to the first step", time.perf_counter() - began)
                found["pairs a second"] = report.images_per_s
                found["trained"] = time.perf_counter() - began
                found["taken"] = found.get("taken", 0) + 1
                if limit is None and found["taken"] == most:
                    raise KeyboardInterrupt

            def epoch(self, report: EpochReport) -> None:
                found["validation"] = time.perf_counter() - began - found["trained"]

        changes = [
            f"image.encoder={{name: precomputed, feature_dim: {self.width}}}",
            f"data.source={self.folder / 'captions.csv'}",
            f"data.features={self.folder / 'features'}",
            f"data.limit={'null' if limit is None else limit}",
            "training.phases=[{epochs: 1}]",
            "training.log_every=1",
            "training.checkpoint_every_s=20",
            "training.device=cpu",
        ]
        with suppress(KeyboardInterrupt):
            recipe = load_recipe("vse_infinity/coco_regions_bigru", changes)
            run_recipe(recipe, self.folder / name, resume=resume, watcher=Watch())
        return found | {"memory": _peak_mb()}

    def evaluate(self, name: str) -> dict[str, float]:
        """Evaluate on the test split by the command."""
        from typer.testing import CliRunner

        from openvse.cli.app import app

        began = time.perf_counter()
        words = ("evaluate", name, "--on", "captions.csv", "--features", "features", "--split", "test")
        paths = [str(self.folder / word) if word in (name, "captions.csv", "features") else word for word in words]
        result = CliRunner().invoke(app, paths)
        assert result.exit_code == 0, result.output
        return {"evaluate": time.perf_counter() - began, "memory": _peak_mb()}


def _peak_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_a_process(function: Callable[..., dict[str, float]], *given: Any) -> dict[str, float]:
    """Call a function in a process of its own, so that its memory is its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


def measure(drawn: Drawn) -> None:
    """Print a row for each measurement."""
    from _measure import environment

    print(
        f"{environment()}; {drawn.images:,} x {drawn.regions} x {drawn.width}, {drawn.captions:,} captions", flush=True
    )
    if not (drawn.folder / "captions.csv").exists():
        drawn.folder.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        drawn.write()
        print(f"write the data, s: {time.perf_counter() - began:.1f}", flush=True)
    for name, function, given in (
        ("train", drawn.train, ("run", None, False)),
        ("resume", drawn.train, ("run", None, True)),
        ("an epoch of few images, with validation", drawn.train, ("short", 128, False)),
        ("evaluate", drawn.evaluate, ("short",)),
    ):
        found = in_a_process(function, *given)
        print(f"{name}: " + ", ".join(f"{key} {value:,.1f}" for key, value in found.items()), flush=True)
    for name in ("run", "short"):
        shutil.rmtree(drawn.folder / name)


def main() -> None:
    """Print the table, or what is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--images", type=float, help="images of a collection of your own")
    parser.add_argument("--captions", type=float, help="its captions; one for each image if absent")
    parser.add_argument("--measure", type=Path, metavar="FOLDER", help="train at that size, on data drawn there")
    parser.add_argument("--held-out", type=int, default=5000, help="images for validation, and for the test")
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=30, help="of training that are timed")
    options = parser.parse_args()
    if options.measure is not None:
        images, captions = int(options.images or 113_287), int(options.captions or 566_435)
        sizes = (images, captions, options.held_out, options.regions, options.width, options.steps)
        measure(Drawn(options.measure, *sizes))
    elif options.images is None:
        print(table(COLLECTIONS))
    else:
        print(table([Collection("yours", options.images, options.captions or options.images)]))


if __name__ == "__main__":
    main()
