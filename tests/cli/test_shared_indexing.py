"""``openvse index --processes``: workers load the model themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from openvse.errors import ModelError
from openvse.indexing import Index
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.tasks.load import load_same
from openvse.tasks.recipes import parse_recipe
from tests.pickled_work import pickled_work
from tests.runtime.colour_export import write_export
from tests.tiny import tiny_tree


@pytest.fixture(scope="module")
def model() -> TwoTower:
    tree = tiny_tree(Path())
    tree["image"]["encoder"] = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32}
    return build_model(parse_recipe(tree), captions=["red dog runs", "green cat"]).eval()


@pytest.mark.medium
def test_an_exported_model_embeds_in_one_process(tmp_path: Path, refused) -> None:
    (tmp_path / "photos").mkdir()
    words = ("index", write_export(tmp_path / "export"), tmp_path / "photos", "--out", tmp_path / "index")
    assert "processes" in refused(*words, "--processes", 2)
    assert "features" in refused(*words, "--features", tmp_path)
    assert "segment" in refused(*words, "--segment-seconds", 5)
    assert not (tmp_path / "index").exists()


@pytest.mark.medium
def test_another_model_is_refused(model: TwoTower, tmp_path: Path) -> None:
    folder = str(model.save(tmp_path / "model"))
    assert load_same(folder, model.fingerprint, "cpu").fingerprint == model.fingerprint
    with pytest.raises(ModelError, match="worker"):
        load_same(folder, "another", "cpu")


@pytest.mark.medium
def test_workers_make_the_index_of_one_process(model: TwoTower, tmp_path: Path, works, monkeypatch) -> None:
    work = pickled_work(monkeypatch)
    folder = model.save(tmp_path / "model")
    (tmp_path / "photos").mkdir()
    for number in range(9):
        Image.new("RGB", (40, 32), (20 * number, 255 - 9 * number, 60)).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "5 broken.jpg").write_text("no image")
    for name, words in (("alone", ()), ("shared", ("--processes", "2"))):
        asked = (folder, tmp_path / "photos", "--out", tmp_path / name, "--batch-size", 2, *words)
        done = works("index", *asked)
        assert "9 images (9 new, 1 unreadable)" in done.output
        assert bool(work.taken) == bool(words)
    alone, shared = (Index.open(tmp_path / name) for name in ("alone", "shared"))
    assert alone.items == shared.items
    np.testing.assert_array_equal(alone.vectors, shared.vectors)
