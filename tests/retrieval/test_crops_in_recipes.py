"""Windows of images in a recipe: extracted from the shell, trained from their store and from images, and saved."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from openvse.backbones import Crops
from openvse.cli.app import app
from openvse.features.extract import extract_features
from openvse.features.store import FeatureStore
from openvse.model.two_tower import TwoTower
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe, parse_recipe
from openvse.tasks.run import run_recipe
from tests.tiny import read_metrics

OPTIONS = ["backbone.image_size=64", "backbone.pretrained=false"]
FINGERPRINT = "crops:efficientnet_lite0:random:64:2x2:1x1 of 1 + 3x3 of 0.5 + 4x4 of 0.333333"


@pytest.fixture
def folder(tmp_path: Path, make_photos) -> Path:
    """Return a folder of six photos with captions."""
    lines = []
    for number, path in enumerate(make_photos(6, size=(90, 60))):
        entry = {"file_name": path.name, "captions": [f"the dog number {number % 3}"]}
        lines.append(json.dumps(entry | {"split": "train" if number < 4 else "validation"}))
    (tmp_path / "photos" / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "photos"


def tree(source: Path, features: str | None) -> dict[str, Any]:
    shipped = load_recipe("vse_infinity/flickr8k_crops_cpu", [f"image.encoder.{each}" for each in OPTIONS])
    changed = shipped.to_dict() | {"embed_dim": 8}
    changed["text"]["encoder"] |= {"word_dim": 4, "min_count": 1, "size_augmentation": "none"}
    changed["image"]["encoder"] |= {"augmentation": "none", "windows": [[1, 1.0], [2, 0.6]]}
    changed["data"] = {"source": str(source), "features": features, "random_views": False}
    changed["training"] |= {"batch_size": 4, "device": "cpu", "precision": "fp32", "phases": [{"epochs": 1}]}
    changed["training"]["log_every"] = 1
    return changed


@pytest.mark.medium
def test_the_shell_extracts_windows_with_their_boxes(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["extract", "crops", str(folder), str(tmp_path / "store"), *OPTIONS])
    assert done.exit_code == 0, done.output
    store = FeatureStore(tmp_path / "store", FINGERPRINT)
    positions = store.positions(store.ids)
    assert store.gather(positions).values.shape == (6, 26, 1280)
    assert store.boxes(positions)[3, 0].tolist() == [0, 0, 1, 1]


@pytest.mark.medium
def test_images_and_their_store_train_to_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    run_recipe(parse_recipe(tree(folder, None)), tmp_path / "images")
    model = load_as(TwoTower, tmp_path / "images" / "best").eval()
    encoder, photos = model.image.encoder, sorted(folder.glob("*.jpg"))
    named = [(photo.name, photo) for photo in photos]
    extract_features(encoder.backbone, named, tmp_path / "store", dtype="float32")
    store = FeatureStore(tmp_path / "store", encoder.fingerprint)
    with torch.inference_mode():
        from_store = model.image(store.gather(store.positions([name for name, _ in named]))).vectors
    torch.testing.assert_close(from_store, model.encode_image(photos).vectors, rtol=0, atol=1e-5)
    run_recipe(parse_recipe(tree(folder, str(tmp_path / "store"))), tmp_path / "stored")
    images, stored = (losses(tmp_path / run) for run in ("images", "stored"))
    assert len(images) >= 1 and stored == pytest.approx(images, rel=1e-5)


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in read_metrics(run) if "loss" in record]


@pytest.mark.medium
def test_a_model_of_windows_is_saved_whole(folder: Path, tmp_path: Path) -> None:
    run_recipe(parse_recipe(tree(folder, None)), tmp_path / "run")
    model = load_as(TwoTower, tmp_path / "run" / "best")
    again = load_as(TwoTower, model.save(tmp_path / "model"))
    photos = sorted(folder.glob("*.jpg"))
    assert torch.equal(again.encode_image(photos).vectors, model.encode_image(photos).vectors)
    assert again.fingerprint == model.fingerprint and not again.reads_videos
    assert again.image.encoder.fingerprint == model.image.encoder.fingerprint
    assert any(name.startswith("image.encoder.backbone.backbone.") for name in again.state_dict())


@pytest.mark.medium
def test_the_shipped_recipe_reads_what_its_header_extracts() -> None:
    encoder = load_recipe("vse_infinity/flickr8k_crops_cpu").image.encoder
    assert encoder.name == "crops" and encoder.options == {"augmentation": "region"}
    assert Crops().fingerprint.startswith("crops:efficientnet_lite0:imagenet:112:4x4:1x1 of 1 + 3x3")
