"""Windows of images in a recipe: extracted from the shell, trained from their store and from images, and saved.

The encoder of clips in a recipe: its backbone is a part, whose faults are placed.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from openvse.backbones import Crops, EfficientNetLite0
from openvse.cli.app import app
from openvse.encoders import ImageEncoder
from openvse.errors import RecipeError
from openvse.features.extract import extract_features
from openvse.features.store import FeatureStore
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe, parse_recipe
from openvse.tasks.run import run_recipe
from tests.seeing import image_encoder
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


BACKBONE = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32}


def build(**options: Any) -> ImageEncoder:
    return image_encoder("frames", embed_dim=6, **options)


def test_the_backbone_is_a_part_with_options() -> None:
    built = build(backbone=BACKBONE, fps=4)
    frames = built.backbone.inner
    assert isinstance(frames, EfficientNetLite0) and frames.image_size == 32
    assert built.fingerprint == "frames:efficientnet_lite0:random:32:1x1:4fps:64"
    assert [name for name, weight in built.named_parameters() if weight.requires_grad] == [
        "projection.linear.weight",
        "projection.linear.bias",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "resnett"}, r"^image\.encoder\.backbone: .*'resnett'.*'resnet'"),
        ({"backbone": BACKBONE | {"image_size": 8}}, r"^image\.encoder\.backbone: image_size.* 8 "),
        ({"backbone": BACKBONE | {"projection": "linear"}}, r"image\.encoder\.backbone\.projection"),
        ({"backbone": {"name": "precomputed", "feature_dim": 4}}, r"^image\.encoder: backbone"),
        ({"sampling": "first"}, r"image\.encoder\.sampling"),
    ],
)
def test_faults_name_their_place(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build(**options)


@pytest.mark.medium
def test_a_model_of_clips_is_saved_whole(tmp_path: Path) -> None:
    tree = load_recipe("vse_infinity/clips_cpu", ["embed_dim=8", "text.encoder.min_count=1"]).to_dict()
    tree["image"]["encoder"]["backbone"] = BACKBONE
    model = build_model(parse_recipe(tree), captions=["a dog"])
    again = load_as(TwoTower, model.save(tmp_path / "model"))
    assert again.reads_videos and again.fingerprint == model.fingerprint
    assert again.image.encoder.fingerprint == model.image.encoder.fingerprint


@pytest.mark.medium
@pytest.mark.parametrize(("name", "views"), [("tgif", 3), ("mrw", 5)])
def test_pvses_recipes_are_the_papers(name: str, views: int) -> None:
    recipe = load_recipe(f"pvse/{name}_frames_bigru")
    model = build_model(recipe, captions=["my reaction when"] * 4)
    assert model.image.aggregator.fixed_k and recipe.image.aggregator.options == {"num_embeddings": views}
    assert recipe.text.aggregator == recipe.image.aggregator
    encoder = model.image.encoder
    assert encoder.backbone.frame_limit.num_frames == 8 and encoder.local_dim == 2048
    assert encoder.global_projection.gru.hidden_size == 512
    assert [figures.metrics["i2t_r1"] for figures in recipe.published] == [{"tgif": 2.32, "mrw": 0.16}[name]]
    assert recipe.optimizer.amsgrad and sum(phase.epochs for phase in recipe.training.phases) == 50
