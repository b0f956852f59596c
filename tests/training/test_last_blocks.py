"""A run whose last text blocks train on the stored states of the others is the run that computes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from openvse.features.store import FeatureStore
from openvse.model.two_tower import TwoTower
from openvse.tasks.load import load_as
from openvse.tasks.run import run_recipe
from tests.tiny import read_metrics
from training.test_text_features import bert, recipe_of, tiny  # noqa: F401 - fixtures


@pytest.mark.medium
def test_stored_and_live_runs_end_at_the_same_weights(tiny: Path, bert: str, tmp_path: Path) -> None:  # noqa: F811
    options = {"fine_tune": True, "train_blocks": 1, "size_augmentation": "none"}
    ends = {}
    for name, text_features in (("live", None), ("stored", "auto")):
        run_recipe(recipe_of(tiny, bert, text_features, **options), tmp_path / name)
        ends[name] = torch.load(tmp_path / name / "last.pt", weights_only=True)["model"]
    store = FeatureStore(tmp_path / "stored" / "text_features")
    assert ":layer 1:" in store.fingerprint
    losses = {
        name: [r["loss"] for r in read_metrics(tmp_path / name) if r["kind"] == "train"] for name in ends
    }
    # States are stored in half precision; dropout of the last block draws the same.
    assert len(losses["live"]) == 4 and losses["stored"] == pytest.approx(losses["live"], rel=5e-3)
    start = load_as(TwoTower, tmp_path / "stored" / "best").text.encoder
    assert start.backbone.encoder.layer[1].output.dense.weight.requires_grad
    lower = [name for name in ends["live"] if "encoder.layer.0." in name or "embeddings" in name]
    assert lower and all(torch.equal(ends["stored"][name], ends["live"][name]) for name in lower)
    # The trained model reads the same store: its lower blocks are as they were.
    assert load_as(TwoTower, tmp_path / "stored" / "best").text.encoder.fingerprint == store.fingerprint
