"""A backbone of one's own: the documentation's goes through extraction, training and a model folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from openvse.assembly.parts import build_part
from openvse.backbones import BACKBONES
from openvse.features.extract import extract_features
from openvse.features.store import FeatureStore
from openvse.model.two_tower import TwoTower
from openvse.registry import load_plugin
from openvse.specs.model import Part
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe

PAGE = Path(__file__).parents[2] / "docs" / "backbones.md"


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[str]:
    """Register the documentation's backbone as a plug-in; return its code."""
    section = PAGE.read_text().split("### A backbone of your own\n", 1)[1]
    found = re.search(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert found is not None
    (tmp_path / "colours.py").write_text(found[1])
    load_plugin(tmp_path / "colours.py")
    yield found[1]
    BACKBONES._parts.pop("colours")


@pytest.fixture
def recipe(tmp_path: Path, make_photos) -> dict[str, Any]:
    """Return a recipe for it, and photos to train with."""
    lines = ["file_name,caption,split"]
    for number, path in enumerate(make_photos(8, size=(48, 40))):
        split = "train" if number < 6 else "validation"
        lines.append(f"{path.relative_to(tmp_path)},the dog number {number % 3},{split}")
    (tmp_path / "photos.csv").write_text("\n".join(lines) + "\n")
    return {
        "name": "own",
        "embed_dim": 8,
        "image": {"encoder": {"name": "colours", "width": 4}, "aggregator": "gpo"},
        "text": {"encoder": {"name": "bigru", "word_dim": 4, "min_count": 1}, "aggregator": "gpo"},
        "objective": {"ranking": {"name": "contrast", "miner": "all", "criterion": "hinge"}},
        "data": {"source": str(tmp_path / "photos.csv")},
        "training": {"batch_size": 6, "device": "cpu", "phases": [{"epochs": 1}]},
    }


def test_it_is_short(shown: str) -> None:
    assert len(shown.splitlines()) <= 40


def test_it_extracts(shown: str, tmp_path: Path, make_photos) -> None:
    backbone = build_part(BACKBONES, Part(name="colours", width=4), "colours")
    images = [(path.name, path) for path in make_photos(3)]
    extract_features(backbone, images, tmp_path / "store")
    store = FeatureStore(tmp_path / "store", backbone.fingerprint)
    assert store.gather(store.positions([name for name, _ in images])).values.shape == (3, 16, 4)


@pytest.mark.medium
def test_it_trains_frozen_from_its_store_and_is_loaded_again(
    shown: str, recipe: dict[str, Any], tmp_path: Path, make_photos
) -> None:
    recipe["data"]["features"] = "auto"
    run_recipe(parse_recipe(recipe), tmp_path / "run")
    model = load_as(TwoTower, tmp_path / "run" / "best")
    again = load_as(TwoTower, model.save(tmp_path / "model"))
    assert again.fingerprint == model.fingerprint
    photos = make_photos(2)
    assert torch.equal(again.encode_image(photos).vectors, model.encode_image(photos).vectors)


@pytest.mark.medium
def test_it_trains_with_the_model(shown: str, recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe["image"]["encoder"]["fine_tune"] = True
    recipe["optimizer"] = {"multipliers": {"image.encoder.backbone": 0.5}}
    weights = {}
    for name, phase in (("tuned", {}), ("frozen", {"frozen": ["image.encoder.backbone"]})):
        recipe["training"]["phases"] = [{"epochs": 1, **phase}]
        run_recipe(parse_recipe(recipe), tmp_path / name)
        weights[name] = load_as(TwoTower, tmp_path / name / "best").state_dict()["image.encoder.backbone.weight"]
    assert not torch.equal(weights["tuned"], weights["frozen"])
