"""Backbones that train as the papers train them: frozen first, then slowly, with BatchNorm standing still."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from openvse.retrieval.build import build_model
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.optimizer import build_optimizer

WORDS = ("dog", "cat", "runs", "sits", "red", "mat", "two", "the")


def tree(folder: Path, image: dict[str, Any], text: dict[str, Any], phases: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": "fine_tuned",
        "embed_dim": 8,
        "image": {"encoder": image, "aggregator": "mean"},
        "text": {"encoder": text, "aggregator": "mean"},
        "objective": {"ranking": {"name": "contrast", "miner": "all", "criterion": "hinge"}},
        "data": {"source": str(folder / "photos.csv")},
        "optimizer": {"learning_rate": 1e-3, "multipliers": {"image.encoder.backbone": 0.1}},
        "training": {"batch_size": 4, "device": "cpu", "phases": phases},
    }


@pytest.fixture
def photos(tmp_path: Path, make_photos) -> Path:
    """Return a folder with eight photos to train with and four to validate, and captions for them."""
    lines = ["file_name,caption,split"]
    for number, path in enumerate(make_photos(12, size=(48, 40))):
        split = "train" if number < 8 else "validation"
        lines.append(f"{path.relative_to(tmp_path)},the {WORDS[number % 8]} {WORDS[(number * 3 + 1) % 8]},{split}")
    (tmp_path / "photos.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def network(model: dict[str, torch.Tensor], side: str) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in model.items() if name.startswith(f"{side}.encoder.backbone.")}


def run(recipe: dict[str, Any], out: Path) -> dict[str, torch.Tensor]:
    run_recipe(parse_recipe(recipe), out)
    state: dict[str, torch.Tensor] = torch.load(out / "last.pt", weights_only=True)["model"]
    return state


@pytest.mark.medium
def test_the_published_phases(photos: Path, vision_checkpoint, bert_checkpoint) -> None:
    """One epoch with the CNN frozen, then a tenth of the learning rate; its statistics never move."""
    image = {"name": "transformers_vision", "model": vision_checkpoint("resnet"), "image_size": 64}
    image |= {"fine_tune": True, "gradient_checkpointing": True}
    text = {"name": "transformers_text", "model": bert_checkpoint}
    first = {"epochs": 1, "frozen": ["image.encoder.backbone"]}
    frozen = run(tree(photos, image, text, [first]), photos / "frozen")
    tuned = run(tree(photos, image, text, [first, {"epochs": 1}]), photos / "tuned")
    published = load_file(f"{vision_checkpoint('resnet')}/model.safetensors")
    assert len(published) > 20
    moved = 0
    for name, weight in published.items():
        key = f"image.encoder.backbone.{name}"
        assert torch.equal(frozen[key], weight), "it is frozen in the first epoch"
        if "running" in name or "num_batches" in name:
            assert torch.equal(tuned[key], weight)
        else:
            moved += not torch.equal(tuned[key], weight)
    assert moved > 10, "it trains in the second"
    words = "text.encoder.backbone.embeddings.word_embeddings.weight"
    assert not torch.equal(frozen[words], load_file(f"{bert_checkpoint}/model.safetensors")[words[22:]])


def bert_recipe(folder: Path, checkpoint: str) -> RetrievalRecipe:
    image = {"name": "precomputed", "feature_dim": 6}
    recipe = tree(folder, image, {"name": "transformers_text", "model": checkpoint}, [{"epochs": 1}])
    recipe["optimizer"]["multipliers"] = {"text.encoder.backbone": 0.1}
    return parse_recipe(recipe)


def test_a_tenth_of_the_learning_rate_is_for_berts_own_parameters_alone(photos: Path, bert_checkpoint) -> None:
    recipe = bert_recipe(photos, bert_checkpoint)
    model = build_model(recipe)
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = {g["multiplier"]: g["params"] for g in build_optimizer(recipe.optimizer, trainable).param_groups}
    assert set(groups) == {1.0, 0.1}
    slow = {id(parameter) for parameter in groups[0.1]}
    bert = model.text.encoder.backbone
    assert slow == {id(p) for name, p in bert.named_parameters() if not name.startswith("pooler")}
    whole = {id(parameter) for _, parameter in trainable}
    assert {id(p) for p in groups[1.0]} == whole - slow
    assert {id(p) for p in model.text.encoder.projection.parameters()} <= {id(p) for p in groups[1.0]}
