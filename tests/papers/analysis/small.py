"""Untrained models that read small drawn images, and an album of such images."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.tasks.recipes import parse_recipe

CAPTIONS = ["red sky above blue ground", "a green field under something yellow", "blue sky above green ground"]
ENCODER = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64, "augmentation": "none"}
WORDS = {"name": "bigru", "word_dim": 8, "min_count": 1, "size_augmentation": "none"}


def small_tree(image: Any = "gpo", text: Any = "gpo", **more: Any) -> dict[str, Any]:
    """Return a recipe of width 16 with two aggregators, or whole sides; ``more`` replaces whole sections."""
    return {
        "name": "small",
        "embed_dim": 16,
        "image": image if _is_side(image) else {"encoder": ENCODER, "aggregator": image},
        "text": text if _is_side(text) else {"encoder": WORDS, "aggregator": text},
        "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": {"name": "hinge"}}},
        "data": {"source": "unused"},
        "training": {"phases": [{"epochs": 1}]},
        **more,
    }


def _is_side(part: Any) -> bool:
    return isinstance(part, dict) and "encoder" in part


def small_model(image: Any = "gpo", text: Any = "gpo", *, seed: int = 0, **more: Any) -> TwoTower:
    """Return an untrained model of width 16."""
    recipe = parse_recipe(small_tree(image, text, **more))
    return build_model(recipe, captions=CAPTIONS, seed=seed).eval()


@cache
def plain() -> TwoTower:
    """Return one model of GPO that tests share and do not change."""
    return small_model()


def named(model: TwoTower, name: str = "model") -> dict[str, TwoTower]:
    return {name: model}


def saved(model: TwoTower, folder: Path) -> Path:
    """Save a model as the best of a run; return the folder of the run."""
    model.save(folder / "best")
    return folder


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def perturbed(model: TwoTower, seed: int) -> TwoTower:
    """Add noise to the weights in place, and return the model."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model
