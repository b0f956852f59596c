"""Pictures to stored features: where the time goes, and what decoding beside computing saves.

Run ``python benchmarks/extraction.py [--folder PICTURES] [--backbone NAME] [OPTION=VALUE ...]``; for more, ``--help``.
Without ``--folder`` it draws JPEG photos, of Flickr8k's usual size unless ``--size`` says otherwise.

The steps are measured alone, one picture or batch after the other. Then the whole: first each batch is decoded and
then encoded, as a plain loop does it; then by ``extract_features``, which decodes in threads while the backbone
computes. Both take turns and write to fresh stores. At last the same with a wait in the backbone's place, as long as
decoding and resizing take: so an accelerator looks from here, and at best the second way is twice as fast.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter

from _measure import environment, median_times, table
from openvse.assembly.parts import build_part
from openvse.backbones import BACKBONES, Backbone
from openvse.backbones.base import all_real
from openvse.features.extract import FeatureStoreWriter, extract_features
from openvse.media.images import read_image
from openvse.media.listing import list_media
from openvse.specs.load import parse_override
from openvse.specs.model import Part
from openvse.types import Features, Inputs

BATCH = 32
PREPARATION = ("decode", "resize and normalise")


def draw(folder: Path, number: int, size: tuple[int, int]) -> None:
    """Write photos: soft shapes with the noise of a sensor, which is what a decoder spends its time on."""
    for index in range(number):
        noise = np.random.default_rng(index).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        soft = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(2))
        grain = np.random.default_rng(index).normal(0, 9, (size[1], size[0], 3))
        photo = Image.fromarray((np.asarray(soft) + grain).clip(0, 255).astype(np.uint8))
        photo.save(folder / f"{index:04d}.jpg", quality=90)


def in_turn(backbone: Backbone, paths: Sequence[Path], store: Path) -> None:
    """Decode a batch, encode it, store it, and only then go on."""
    with (
        FeatureStoreWriter(store, fingerprint=str(backbone.fingerprint), dim=backbone.feature_dim) as writer,
        torch.inference_mode(),
    ):
        for start in range(0, len(paths), BATCH):
            batch = paths[start : start + BATCH]
            pixels = torch.stack([backbone.preprocess(read_image(path)) for path in batch])
            for path, local in zip(batch, backbone(Inputs(pixels, None)).local, strict=True):
                writer.add(path.name, local)


def beside(backbone: Backbone, paths: Sequence[Path], store: Path, workers: int) -> None:
    report = extract_features(
        backbone, [(path.name, path) for path in paths], store, batch_size=BATCH, num_workers=workers
    )
    assert report.done == len(paths), report.failed


def steps(backbone: Backbone, paths: Sequence[Path], folder: Path) -> list[tuple[str, float]]:
    """Return the seconds that each step takes for all pictures, each step on its own."""
    pictures = [read_image(path) for path in paths]
    pixels = [backbone.preprocess(picture) for picture in pictures]
    batches = [torch.stack(pixels[start : start + BATCH]) for start in range(0, len(pixels), BATCH)]
    with torch.inference_mode():
        features = [backbone(Inputs(batch, None)).local for batch in batches]
    stores = (folder / f"step{number}" for number in count())

    def encode() -> None:
        with torch.inference_mode():
            for batch in batches:
                backbone(Inputs(batch, None))

    def write() -> None:
        fingerprint = str(backbone.fingerprint)
        with FeatureStoreWriter(next(stores), fingerprint=fingerprint, dim=backbone.feature_dim) as writer:
            for path, local in zip(paths, torch.cat(features), strict=True):
                writer.add(path.name, local)

    def decode() -> None:
        for path in paths:
            read_image(path)

    def preprocess() -> None:
        for picture in pictures:
            backbone.preprocess(picture)

    named = dict(zip(PREPARATION, (decode, preprocess), strict=True)) | {"backbone": encode, "write": write}
    return list(zip(named, median_times(list(named.values()), repeats=3, warmup=1), strict=True))


def paired(ways: Sequence[Callable[[Path], None]], folder: Path, repeats: int) -> np.ndarray:
    """Return ``[repeats, ways, 2]``: wall and processor seconds of the ways, which take turns."""
    seconds = np.zeros((repeats, len(ways), 2))
    for turn in range(repeats):
        for number, way in enumerate(ways):
            started = time.perf_counter(), time.process_time()
            way(folder / f"store{turn}-{number}")
            seconds[turn, number] = time.perf_counter() - started[0], time.process_time() - started[1]
    return seconds


def compare(backbone: Backbone, paths: Sequence[Path], folder: Path, arguments: argparse.Namespace) -> str:
    """Return the table of both ways."""
    folder.mkdir()
    workers = arguments.workers
    ways = {
        "each batch decoded, then encoded": partial(in_turn, backbone, paths),
        f"decoded beside the backbone, {workers} thread(s)": partial(beside, backbone, paths, workers=workers),
    }
    seconds = paired(list(ways.values()), folder, arguments.repeats)
    faster = np.median(seconds[:, :1, 0] / seconds[:, :, 0], axis=0)
    medians = np.median(seconds, axis=0).tolist()
    rows = [
        [name, wall, processor, len(paths) / wall, ratio]
        for name, (wall, processor), ratio in zip(ways, medians, faster, strict=True)
    ]
    return table(["way", "seconds", "processor seconds", "pictures/s", "times as fast"], rows)


def first_pixels(backbone: Backbone, paths: Sequence[Path]) -> torch.Tensor:
    return backbone.preprocess(read_image(paths[0])).unsqueeze(0)


def waiting(local: torch.Tensor, seconds: float, inputs: Inputs) -> Features:
    """Stand for a backbone that runs elsewhere: wait for each picture, and return the same features for all."""
    time.sleep(seconds * len(inputs))
    return all_real(local.expand(len(inputs), -1, -1))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("options", nargs="*", help="the backbone's options, such as image_size=512")
    parser.add_argument("--backbone", default="efficientnet_lite0")
    parser.add_argument("--folder", type=Path, help="pictures to read; drawn where it is left out")
    parser.add_argument("--size", default="500x375", help="of the drawn pictures")
    parser.add_argument("--pictures", type=int, default=128)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    options = dict(parse_override(option) for option in arguments.options)
    part = Part(**{**options, "name": arguments.backbone})
    backbone = build_part(BACKBONES, part, arguments.backbone, {"assets": None}).eval()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = arguments.folder or folder / "pictures"
        if arguments.folder is None:
            source.mkdir()
            width, height = map(int, arguments.size.split("x"))
            draw(source, arguments.pictures, (width, height))
        paths = list_media(source).paths[: arguments.pictures]
        print(f"{len(paths)} pictures, {backbone.fingerprint}; {environment()}, load {os.getloadavg()[0]:.1f}\n")
        measured = steps(backbone, paths, folder)
        whole = sum(seconds for _, seconds in measured)
        rows = [[name, 1000 * s / len(paths), len(paths) / s, f"{s / whole:.0%}"] for name, s in measured]
        print(table(["step, alone", "ms a picture", "pictures/s", "share"], rows), end="\n\n")
        print(compare(backbone, paths, folder / "computing", arguments), end="\n\n")
        decoding = sum(seconds for name, seconds in measured if name in PREPARATION) / len(paths)
        local = backbone(Inputs(first_pixels(backbone, paths), None)).local[0].detach()
        backbone.see = partial(waiting, local, decoding)  # an attribute comes before the class's method
        print(f"In the backbone's place a wait of {1000 * decoding:.3g} ms a picture:\n")
        print(compare(backbone, paths, folder / "waiting", arguments))


if __name__ == "__main__":
    main()
