"""Small models with random weights to export."""

from pathlib import Path
from typing import Any

import torch

from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.specs.model import TwoTowerSpec

CAPTIONS = ("a red dog runs on the grass", "a blue cat sleeps", "two green birds", "a dog and a cat")
WORDS = {"name": "bigru", "word_dim": 6, "min_count": 1, "max_words": 40}
REGIONS = {"name": "precomputed", "feature_dim": 10}


def make(image: dict[str, Any], text: dict[str, Any], **more: Any) -> TwoTower:
    """Build a model; weights that start at 0 or 1 are shaken, so that none is in the wrong place unnoticed."""
    spec = TwoTowerSpec.of({"embed_dim": 8, "image": image, "text": text, **more})
    model = build_model(spec, captions=CAPTIONS).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    return model


def with_gpo() -> TwoTower:
    """Return VSE-infinity's parts: regions and a BiGRU, both under a GPO."""
    return make({"encoder": REGIONS, "aggregator": "gpo"}, {"encoder": WORDS, "aggregator": "gpo"})


def with_several() -> TwoTower:
    """Return three views of an image, and PVSE's PIE-Net over words."""
    views = {"name": "multi_view", "num_views": 3, "share_projection": False}
    words = WORDS | {"output": "words", "unknown": "nearest"}
    return make(
        {"encoder": REGIONS | {"projection": "none"}, "aggregator": views}, {"encoder": words, "aggregator": "pie_net"}
    )


def files_in(folder: Path) -> list[str]:
    """Return the names of the files of a folder."""
    return sorted(path.name for path in folder.iterdir())
