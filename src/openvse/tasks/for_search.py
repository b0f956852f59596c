"""What the search half asks of the training half: models of PyTorch, and what ranks hits again."""

from __future__ import annotations

from pathlib import Path

from openvse.features import open_store
from openvse.model import TwoTower
from openvse.retrieval.hit_reranker import HitReranker
from openvse.tasks.load import load_as
from openvse.vqa.answerer import Answerer


def load_two_tower(source: str, *, device: str = "cpu") -> TwoTower:
    """Load a model that embeds images and sentences; see ``openvse.tasks.load.load``."""
    return load_as(TwoTower, source, device=device)


def load_answerer(source: str, *, device: str = "cpu") -> Answerer:
    """Load a model that answers questions; see ``openvse.tasks.load.load``."""
    return load_as(Answerer, source, device=device)


def load_reranker(
    source: str, features: Path | None = None, *, top: int = 20, weight: float = 1.0, device: str = "cpu"
) -> HitReranker:
    """Load the model that ranks hits again, and the feature store that it reads, if one is named."""
    model = load_two_tower(source, device=device)
    return HitReranker(model, top=top, weight=weight, features=open_store(features, model.image.encoder))
