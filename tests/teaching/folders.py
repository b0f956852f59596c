"""A small model that learns at once, and an index of drawn photos by it."""

from __future__ import annotations

import json
from pathlib import Path

from openvse.indexing import build_index
from openvse.indexing.manifest import place_of
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.retrieval.names import class_names
from openvse.specs.model import TwoTowerSpec
from tests.conftest import draw_photo

SAID = ["a red dog runs", "the green cat sleeps", "two blue birds in the water", "grass"]


def small_model(classes: int = 0, width: int = 8) -> TwoTower:
    """Return a model that ends in linear maps, with ImageNet's classes or none."""
    encoder = {"name": "efficientnet_lite0", "image_size": 32, "projection": "none", "pretrained": bool(classes)}
    tree = {
        "embed_dim": width,
        "image": {"encoder": encoder, "aggregator": {"name": "pooled_linear", "classes": classes}},
        "text": {"encoder": {"name": "bigru", "word_dim": 4, "min_count": 1}, "aggregator": "pooled_linear"},
    }
    model = build_model(TwoTowerSpec.of(tree), captions=SAID, seed=0).eval()
    assert len(class_names("auto", model)) == classes
    return model


def write_folder(folder: Path, count: int, captioned: int) -> Path:
    """Draw photos, of which the first ones have a caption each."""
    folder.mkdir(parents=True)
    for number in range(count):
        draw_photo(number, (48, 36)).save(folder / f"{number:02d}.jpg", quality=90)
    lines = [{"file_name": f"{number:02d}.jpg", "captions": [SAID[number % 4]]} for number in range(captioned)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def make_index(folder: Path, count: int, captioned: int, classes: int = 0) -> TwoTower:
    """Write photos and their index below a folder, and return its model."""
    photos, out = write_folder(folder / "photos", count, captioned), folder / "index"
    model = small_model(classes)
    out.mkdir()
    model.source = str(model.save(out / "model"))
    build_index(model, photos, out, model_place=place_of(model.source, out))
    return model
