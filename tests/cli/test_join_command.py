"""``openvse join``: a folder of the joined model, and one line for what cannot be joined."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from openvse.cli.program import app
from openvse.model import TwoTower
from openvse.retrieval.build import build_model
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from tests.tiny import tiny_tree


@pytest.mark.medium
def test_models_are_joined_from_the_command_line(tmp_path: Path) -> None:
    tree = tiny_tree(tmp_path)
    tree["image"]["encoder"] = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32}
    for seed in (0, 1):
        build_model(parse_recipe(tree), captions=["red dog"], seed=seed).save(tmp_path / str(seed))
    words = ["join", str(tmp_path / "0"), str(tmp_path / "1"), "--out", str(tmp_path / "joined")]
    done = CliRunner().invoke(app, [*words, "--share", "2", "--share", "1"])
    assert done.exit_code == 0, done.output
    assert "32 numbers per image or sentence (16 + 16)" in done.output
    shares = [
        member["share"]
        for member in load_as(TwoTower, tmp_path / "joined").spec.image.encoder.options["members"]
    ]
    assert shares == pytest.approx([2 / 3, 1 / 3])
    refused = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "other"), "--share", "2"])
    assert refused.exit_code == 2 and "1 shares are given for 2 models" in refused.output
