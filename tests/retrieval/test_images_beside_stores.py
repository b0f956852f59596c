"""An ensemble of stored regions and of grids that are seen in the images."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from openvse.datasets import open_corpus
from openvse.errors import DataError, ModelError, StoreError
from openvse.evaluation.embed import Member, embed_corpus
from openvse.evaluation.report import evaluate_sets
from openvse.features.store import FeatureStore
from openvse.features.writer import FeatureStoreWriter
from openvse.model.two_tower import TwoTower
from openvse.retrieval.evaluate import evaluate_towers
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.kind import Request
from tests.cli.album import write_album, write_recipe
from tests.naming import names, refusal
from tests.papers.analysis.small import ENCODER, saved, small_model

REGIONS = {"encoder": {"name": "precomputed", "feature_dim": 5}, "aggregator": "gpo"}
TUNED = {"encoder": {**ENCODER, "fine_tune": True}, "aggregator": "gpo"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ensemble")
    corpus = open_corpus(write_album(folder / "album"))
    torch.manual_seed(0)
    for store, ids in (("stores/regions", corpus.image_ids), ("less", corpus.image_ids[:3])):
        with FeatureStoreWriter(folder / store, fingerprint="detector", dim=5) as writer:
            for item in ids:
                writer.add(item, torch.randn(4, 5))
    return folder


@pytest.fixture(scope="module")
def models() -> tuple[TwoTower, TwoTower]:
    return small_model(REGIONS), small_model(TUNED, seed=1)


@pytest.mark.medium
@pytest.mark.parametrize("features", ["stores", "stores/regions"])
def test_a_member_that_can_read_images_reads_them(
    place: Path, models: tuple[TwoTower, TwoTower], features: str
) -> None:
    request = Request(str(place / "album"), "all", (place / features,))
    found = evaluate_towers(models, request)
    corpus = open_corpus(place / "album")
    store = FeatureStore(place / "stores" / "regions")
    one, other = embed_corpus(models[0], corpus, store), embed_corpus(models[1], corpus)
    expected = evaluate_sets(
        one.images,
        one.texts,
        corpus.relevance,
        models[0].similarity,
        others=[Member(other.images, other.texts, models[1].similarity)],
    )
    assert found.report.metrics == expected.metrics
    assert (found.warnings, found.report.problems) == ((), ())
    refusal(StoreError, evaluate_towers, models[1:], request)
    refusal(StoreError, evaluate_towers, models, replace(request, features=(place / features, place / "stores")))


@pytest.mark.medium
def test_images_have_to_be_there(place: Path, models: tuple[TwoTower, TwoTower], tmp_path: Path) -> None:
    album = write_album(tmp_path / "album")
    for image in album.glob("*.png"):
        image.unlink()
    refusal(DataError, lambda: evaluate_towers(models, Request(str(album), "all", (place / "stores",))))


@pytest.mark.medium
def test_a_model_without_a_network_reads_the_store_of_its_run(
    place: Path, models: tuple[TwoTower, TwoTower], tmp_path: Path
) -> None:
    run = saved(models[0], tmp_path / "run")
    asked = Request(str(place / "album"), "all", places=[str(run / "best")] * 2)
    (run / "recipe.yaml").write_text(f"data: {{features: {place / 'stores' / 'regions'}}}\n")
    found = evaluate_towers(models, asked)
    named = evaluate_towers(models, replace(asked, features=(place / "stores",), places=()))
    assert found.report.metrics == named.report.metrics
    (run / "recipe.yaml").write_text(f"data: {{features: {place / 'less'}}}\n")
    refusal(ModelError, evaluate_towers, models, asked)
    tree = yaml.safe_load(write_recipe(tmp_path / "tiny.yaml", place / "album").read_text()) | {"image": REGIONS}
    for features in (None, "auto"):
        tree["data"]["features"] = features
        assert names(refusal(ModelError, run_recipe, parse_recipe(tree), tmp_path / "new"), "data.features=STORE")
        assert not (tmp_path / "new").exists()


@pytest.mark.medium
@pytest.mark.parametrize("reads", ["features", "images", "both"])
def test_items_that_cannot_be_used_are_in_the_report(
    models: tuple[TwoTower, TwoTower], tmp_path: Path, reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with a number that is not finite, one whose file is cut off; the folds are then of other images."""
    monkeypatch.setattr(FeatureStoreWriter, "_check_item", lambda *_: None)  # it would refuse the number
    corpus = open_corpus(write_album(tmp_path / "album"))
    with FeatureStoreWriter(tmp_path / "store", fingerprint="detector", dim=5) as writer:
        for number, item in enumerate(corpus.image_ids):
            writer.add(item, torch.full((4, 5), torch.nan if number == 1 else 1.0))
    cut = tmp_path / "album" / corpus.image_paths[2].name
    cut.write_bytes(cut.read_bytes()[:-40])
    chosen = {"features": models[:1], "images": models[1:], "both": models}[reads]
    stores = () if reads == "images" else (tmp_path / "store",)
    found = evaluate_towers(chosen, Request(str(tmp_path / "album"), "all", stores, folds=2))
    left_out = {"features": [1], "images": [2], "both": [1, 2]}[reads]
    assert found.report.protocol.num_images == len(corpus) - len(left_out)
    folds, *skipped = found.report.problems
    assert all(corpus.image_ids[number] in line for number, line in zip(left_out, skipped, strict=True))
    assert f"2 folds are cut from the {len(corpus) - len(left_out)} images" in folds
    written = {path.name: path.read_text() for path in found.write(tmp_path / "report")}
    for line in found.report.problems:
        assert line in written["report.md"] and line in json.loads(written["report.json"])["problems"]
