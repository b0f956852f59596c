"""Training and evaluation on the features that a data set brings along; what a vocabulary is made of."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openvse.datasets import open_corpus
from openvse.errors import DataError, ModelError
from openvse.evaluation.embed import embed_corpus
from openvse.evaluation.report import evaluate_sets
from openvse.features.store import FeatureStore
from openvse.model.two_tower import TwoTower
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from tests.tiny import read_metrics, tiny_recipe, tiny_tree, write_tiny_corpus


def write_arrays(tiny: Path, folder: Path) -> Path:
    """Write the tiny data set in the precomputed layout, with file names as identifiers."""
    corpus, store = open_corpus(tiny / "tiny.csv", require_images=False), FeatureStore(tiny / "features")
    folder.mkdir()
    for split, name in (("train", "train"), ("validation", "dev")):
        part = corpus.split(split)
        array = store.gather(store.positions(part.image_ids)).values.numpy()
        np.save(folder / f"{name}_ims.npy", np.repeat(array, 2, axis=0))
        (folder / f"{name}_caps.txt").write_text("\n".join(part.captions) + "\n")
        (folder / f"{name}_ids.txt").write_text("\n".join(part.image_ids) + "\n")
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("places")
    tiny = write_tiny_corpus(root / "tiny")
    return tiny, write_arrays(tiny, root / "arrays")


ONE_EPOCH = [{"epochs": 1}]
pytestmark = pytest.mark.medium


def tree_on(arrays: Path, **data: Any) -> dict[str, Any]:
    return {**tiny_tree(arrays, phases=ONE_EPOCH), "data": {"source": str(arrays), **data}}


@pytest.fixture(scope="module")
def run_with_store(places: tuple[Path, Path]) -> Path:
    run = places[0].parent / "run"
    run_recipe(tiny_recipe(places[0], phases=ONE_EPOCH), run)
    return run


@pytest.mark.parametrize("features", [None, "auto"])
def test_a_run_without_a_store_is_the_run_with_it(features, places, run_with_store, tmp_path) -> None:
    arrays = places[1]
    own = run_recipe(parse_recipe(tree_on(arrays, features=features)), tmp_path / "own")
    assert read_metrics(tmp_path / "own") == read_metrics(run_with_store)
    assert not (tmp_path / "own" / "features").exists()
    model = load_as(TwoTower, own.best)
    embedded = embed_corpus(model, open_corpus(arrays).split("validation"))
    report = evaluate_sets(embedded.images, embedded.texts, embedded.corpus.relevance, model.similarity, resamples=0)
    assert report.metrics["rsum"] == pytest.approx(own.progress.best_score)


def test_another_width_and_a_backbone_are_refused_before_training(places, tmp_path) -> None:
    _, arrays = places
    tree = tree_on(arrays)
    tree["image"]["encoder"]["feature_dim"] = 7
    with pytest.raises(ModelError, match=r"12 .*7.*image\.encoder\.feature_dim.*12"):
        run_recipe(parse_recipe(tree), tmp_path / "width")
    tree["image"]["encoder"] = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64}
    with pytest.raises(DataError, match="12"):
        run_recipe(parse_recipe(tree), tmp_path / "backbone")


def test_features_that_are_not_finite_are_skipped(places, tmp_path, caplog) -> None:
    arrays = shutil.copytree(places[1], tmp_path / "arrays")
    train_ims = np.load(arrays / "train_ims.npy")
    train_ims[4:6, 0, 0] = np.nan
    np.save(arrays / "train_ims.npy", train_ims)
    result = run_recipe(parse_recipe(tree_on(arrays)), tmp_path / "run")
    assert result.progress.best_score > 0
    assert len({line for line in caplog.messages if "002.jpg" in line}) == 1


def test_the_vocabulary_is_of_training_captions_alone(places, tmp_path) -> None:
    tiny = shutil.copytree(places[0], tmp_path / "tiny")
    table = tiny / "tiny.csv"
    lines = table.read_text().splitlines()
    spoken = [
        f"{line},".replace(",train,", " inside,train,").replace(",validation,", " outside,validation,")
        for line in lines
    ]
    table.write_text("\n".join([lines[0], *(line.removesuffix(",") for line in spoken[1:])]) + "\n")
    corpus = open_corpus(table, require_images=False)
    assert any("outside" in caption for caption in corpus.captions)
    run_recipe(tiny_recipe(tiny, phases=ONE_EPOCH), tmp_path / "run")
    words = json.loads((tmp_path / "run" / "best" / "text" / "vocabulary.json").read_text())
    assert "inside" in json.dumps(words) and "outside" not in json.dumps(words)
