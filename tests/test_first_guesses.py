"""The ten tasks of a first visit with Python, each as one guesses it; eight names are enough."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import openvse
from openvse.cli.app import app
from openvse.errors import DataError, IndexFormatError, ModelError, OpenVSEError, RecipeError
from openvse.runtime.arrays import ArraySet
from openvse.search import Index, SearchEngine
from openvse.specs.load import override_list, read_recipe
from openvse.train_cli.commands.train import _chosen
from openvse.types import EmbeddingSet
from tests.cli.album import write_album
from tests.naming import names, refusal

pytestmark = pytest.mark.slow

NAMES = {"train", "load", "open", "index", "evaluate", "list_models", "list_recipes", "list_parts"}
"""All that the guesses here take from ``openvse``; what they call of a result is its own."""


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Any:
    """Train and index where a first visit does, and be there."""
    place = tmp_path_factory.mktemp("visit")
    write_album(place / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        # An export takes long, and tests/exporting holds it.
        patch.setattr("openvse.search.updating._write_towers", lambda *_: None)
        run = openvse.train("folder", data="photos", out="runs/mine")
        assert run.best == Path("runs/mine/best")
        assert "untrained" in repr(run)
        openvse.index("runs/mine", "photos", out="runs/mine/index")
        yield place


def test_the_guesses_take_eight_names() -> None:
    taken = set(re.findall(r"openvse\.(\w+)\(", Path(__file__).read_text()))
    assert taken == NAMES


def test_load_encode_and_compare(here: Path) -> None:
    model = openvse.load("runs/mine")
    assert model.encode("a red sky").shape == model.encode_text("a red sky").shape == (1, 896)
    images = model.encode(["photos/00.png", "photos/01.png"])
    assert images.shape == images.numpy().shape == np.asarray(images).shape == (2, 896)
    assert np.array_equal(images.numpy(), model.encode(Path("photos/00.png")).numpy()) is False
    assert len(repr(images)) < 60
    assert [row.tolist() for row in images] == images.numpy().tolist()
    assert np.vstack(images).shape == (2, 896)
    texts = model.encode(["red sky above blue ground", "green"])
    assert np.array_equal(model.encode(np.array(["red sky above blue ground", "green"])).numpy(), texts.numpy())
    assert model.similarity(images, texts).shape == (2, 2)
    jaxtyping.config.update("jaxtyping_disable", True)  # as for a user
    try:
        for guess in (model.similarity, model.score):
            assert names(refusal(ModelError, guess, ["photos/00.png"], ["green"]), "encode")
        for wrong in (None, {"caption": ["a"]}, ["a dog", "photos/00.png"]):
            refusal(DataError, model.encode, wrong)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    assert openvse.load(Path("runs/mine/best")).fingerprint == model.fingerprint


def test_search_by_sentence_image_and_date(here: Path) -> None:
    with openvse.open("runs/mine") as engine:
        assert repr(engine) == f"SearchEngine(20 images of {engine.root})"
        hits = engine.search("red sky", top_k=3)
        assert [hit.rank for hit in hits] == [1, 2, 3]
        assert str(hits).splitlines()[0].split()[:2] == ["rank", "score"]
        assert "<table>" in hits._repr_html_()
        assert [row["id"] for row in hits.to_dicts()] == [*hits.to_pandas()["id"]] == [hit.id for hit in hits]
        opened = Image.open("photos/05.png")
        for image in ("photos/05.png", Path("photos/05.png"), opened, np.asarray(opened)):
            assert engine.search(image, top_k=1)[0].id in ("05.png", "17.png"), type(image)  # which look the same
        assert len(engine.search("red", where="date >= 2024-05", top_k=5)) == 5
        assert engine.search("red", where="date < 2024-05") == []
        assert [len(each) for each in engine.search(["red", "photos/05.png"], top_k=2)] == [2, 2]
        assert names(refusal(DataError, engine.search, "photos/nowhere.png"), "nowhere.png")
        assert names(refusal(DataError, engine.search, "nowhere.png"), "nowhere.png")
    with openvse.open(Path("runs/mine/index")) as again:
        assert again.search("red sky", top_k=3) == hits
    with pytest.raises(AttributeError, match=r"openvse\.open\("):  # which has the model, too
        Index.open("runs/mine").search("red sky")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"openvse\.search"):
        openvse.Page  # type: ignore[attr-defined]  # noqa: B018
    with SearchEngine("runs/mine", "runs/mine/index") as other:
        assert [hit.id for hit in other.search("red sky", top_k=3)] == [hit.id for hit in hits]


def test_index_and_evaluate(here: Path) -> None:
    model = openvse.load("runs/mine")
    update = openvse.index(model, "photos", out="other")
    assert update.items.count == 20
    assert repr(update) == "IndexUpdate(20 images (20 new, 20 from stored features, 0 unreadable))"
    report = openvse.evaluate(model, "photos", split="validation")
    assert report.protocol.num_images == 4
    assert report.to_dict()["metrics"] == report.metrics
    assert [*report.to_pandas()["metric"]] == [*report.metrics]
    assert repr(report) == str(report) == report._repr_markdown_() == report.to_markdown()
    assert openvse.evaluate("runs/mine", Path("photos")).protocol.num_texts == 8
    evaluate, arrays = openvse.evaluate, (np.eye(3), np.eye(3))
    assert names(refusal(DataError, evaluate, "runs/mine", np.eye(3)), "str", "ndarray")
    assert names(refusal(DataError, evaluate, *arrays, split="validation"), "split", "'validation'")
    assert names(refusal(DataError, evaluate, "runs/mine", "photos", name="mine"), "name")
    assert names(refusal(DataError, evaluate, *arrays, resamples=-1), "resamples", -1)
    assert names(refusal(DataError, openvse.index, model, "photos", out="none", batch_size=0), "batch_size")
    assert names(refusal(ModelError, openvse.index, None, "photos", out="none"), "None")
    wrong: dict[str, Any] = {"query_bank": "a dog", "towers": "bothh", "dtype": "float8"}
    for name, value in wrong.items():
        assert names(refusal(DataError, openvse.IndexSettings, **{name: value}), name)


def test_save_and_list(here: Path) -> None:
    openvse.load("runs/mine").save("kept")
    listed = openvse.list_models()
    assert {"kept", "runs/mine/best", "clip-b32"} <= {*listed}
    shown = CliRunner().invoke(app, ["list", "models", "--json"])
    assert [*json.loads(shown.stdout)["result"]["listed"]] == listed
    assert "folder" in openvse.list_recipes()
    assert "gpo" in openvse.list_parts("aggregators")
    assert openvse.list_parts("similarity") == openvse.list_parts("similarities")
    assert names(refusal(RecipeError, openvse.list_parts, "pooler"), "'pooler'", "aggregator")


def test_what_cannot_be_opened_says_why(here: Path) -> None:
    Path("runs/plain").mkdir()
    Path("runs/plain/recipe.yaml").write_text("name: x\n")
    assert names(refusal(IndexFormatError, openvse.open, "runs/plain"), "runs/plain")
    assert names(refusal(OpenVSEError, openvse.open, "nothing_there"), "nothing_there")
    assert openvse.open("runs/mine/best").task == "retrieval"


def test_a_text_is_one_override_and_not_its_letters() -> None:
    assert override_list("seed=1") == override_list({"seed": 1}) == override_list(["seed=1"]) == [("seed", 1)]
    given = {"data": Path("photos"), "training.phases.0.epochs": 3}
    tree = read_recipe("folder", given)
    assert tree["data"]["source"] == "photos"
    assert tree["training"]["phases"][0]["epochs"] == 3
    assert read_recipe("folder", "data=photos")["data"]["source"] == "photos"
    recipe, settings = _chosen("data=photos", [], "null", None, 2)  # a start is a name, whatever it is called
    assert (recipe, *settings) == ("finetune", "data=photos", ("training.threads", 2), ("start", "null"))


def test_several_embeddings_of_an_item_have_a_shape_of_three() -> None:
    several = EmbeddingSet.concatenate([openvse_set(2), openvse_set(1)])
    assert several.shape == several.numpy().shape == (2, 2, 4)
    assert [row.tolist() for row in several] == several.numpy().tolist()
    arrays = ArraySet(several.vectors.numpy(), several.mask.numpy())
    assert [row.tolist() for row in arrays] == several.numpy().tolist()


def openvse_set(count: int) -> EmbeddingSet:
    import torch

    return EmbeddingSet.full(torch.ones(1, count, 4))
