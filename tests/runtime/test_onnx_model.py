"""An exported model in ONNX Runtime: what it embeds, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest
from colour_export import COLOURS, write_export
from PIL import Image

from openvse.errors import DataError, ModelError
from openvse.indexing import Index, build_index
from openvse.runtime import OnnxModel
from openvse.runtime.arrays import ArraySet, score_sets
from openvse.runtime.model import Preprocessing, is_export
from openvse.search import Page, Query, SearchEngine
from openvse.search.exact import ExactSearch
from openvse.stores.following import plan_engine, update_engine
from tests.naming import names, refusal


@pytest.fixture
def model(tmp_path: Path) -> OnnxModel:
    return OnnxModel(write_export(tmp_path / "exported"), threads=1)


def test_words_and_images_meet(model: OnnxModel) -> None:
    images = model.encode_image([Image.new("RGB", (20, 10), colour) for colour in COLOURS.values()], batch_size=2)
    texts = model.encode_text(["blue", "red red green", "green"], batch_size=2)
    assert images.vectors.shape == texts.vectors.shape == (3, 1, 3)
    assert model.score(images, texts).argmax(axis=0).tolist() == [2, 0, 1]
    alone = model.encode_text("red red green")
    assert np.allclose(alone.vectors[0], texts.vectors[1])


def test_unknown_words_are_told_once(model: OnnxModel, caplog: pytest.LogCaptureFixture) -> None:
    model.encode_text(["a red zebra", "zebra"])
    assert [record.getMessage() for record in caplog.records] == ["the model does not know the words 'a', 'zebra'"]


@pytest.mark.medium
def test_an_index_of_an_export(model: OnnxModel, tmp_path: Path) -> None:
    for name, colour in COLOURS.items():
        Image.new("RGB", (12, 9), colour).save(tmp_path / f"{name}.png")
    report = build_index(model, tmp_path, tmp_path / "index")  # type: ignore[arg-type]
    assert report.count == 3
    engine = SearchEngine(model, Index.open(tmp_path / "index"))
    assert [hits[0].id for hits in engine.search(["green", "red"])] == ["green.png", "red.png"]
    several = [Query(text="red"), Query(like="red.png"), Query(text="blue", avoid=("green",))]
    assert [hits[0].id for hits in engine.search(several, 2)] == ["red.png", "green.png", "blue.png"]
    where = Page(where=("path ~ *.png",))
    seen = engine.answer([Query(image=tmp_path / "green.png"), Query(text="red")], where)
    assert [answer.hits[0].id for answer in seen] == ["green.png", "red.png"]
    plan_engine(tmp_path / "index", "int8", model=model).note(tmp_path / "index")
    update_engine(tmp_path / "index")
    by_store = SearchEngine(model, Index.open(tmp_path / "index"))
    assert by_store.search(["green", "red"]) == engine.search(["green", "red"])
    assert not isinstance(by_store.catalogue.searcher, ExactSearch)


def test_nothing_to_embed(model: OnnxModel) -> None:
    assert names(refusal(DataError, model.encode_text, []), "captions")
    assert names(refusal(ModelError, lambda: model.encode_features([np.zeros((1, 3), np.float32)])), "encode_image")


def test_a_folder_without_an_export(tmp_path: Path) -> None:
    assert not is_export(tmp_path) and not is_export("x" * 5000)
    assert names(refusal(ModelError, OnnxModel, tmp_path), "openvse export MODEL")


def test_scores_of_sets() -> None:
    rng = np.random.default_rng(0)
    images, texts = rng.normal(size=(4, 3, 5)), rng.normal(size=(6, 2, 5))
    mask = np.array([[True, False], *[[True, True]] * 5])
    for kind in ("inner", "order"):
        scores = score_sets(ArraySet.full(images), ArraySet(texts, mask), kind)
        for i in range(4):
            for t in range(6):
                pairs = [(a, b) for a in images[i] for b, real in zip(texts[t], mask[t], strict=True) if real]
                wanted = max(
                    a @ b if kind == "inner" else -np.square(np.maximum(np.abs(b) - np.abs(a), 0)).sum()
                    for a, b in pairs
                )
                assert np.isclose(scores[i, t], wanted)


def test_a_preprocessing_comes_back_from_json() -> None:
    given = Preprocessing(sizes=((4, 6),), windows=((1, 1.0), (2, 0.5)), crop=(3, 3), mean=(1.0, 2.0, 3.0))
    import json
    from dataclasses import asdict

    assert Preprocessing.from_json(json.loads(json.dumps(asdict(given)))) == given
    assert given(Image.new("RGB", (30, 20))).shape == (5, 3, 3, 3)
    assert names(refusal(ModelError, Preprocessing.from_json, {"blur": 3}), "blur")


def test_threads_do_not_spin_after_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    seen: list[onnxruntime.SessionOptions] = []
    opened = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda path, options, providers: seen.append(options) or opened(path, options, providers=providers),
    )
    OnnxModel(write_export(tmp_path / "exported")).encode_text(["red"])
    assert seen[0].get_session_config_entry("session.intra_op.allow_spinning") == "0"
