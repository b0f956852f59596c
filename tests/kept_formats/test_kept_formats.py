"""Models, a store, an index and a recipe that openvse 1.0.0 has written are read as it read them.

``expected.json`` holds what openvse computed then: fingerprints, embeddings, answers, features and hits. ``resnet``
reads images, ``stored_counting`` stored features; ``answerer`` answers questions, ``question_only`` without an image.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import openvse
from openvse.features.store import FeatureStore
from openvse.indexing import Index
from openvse.search import Hit, Query, SearchEngine
from openvse.tasks.recipes import parse_recipe
from openvse.types import Inputs

KEPT = Path(__file__).parent
EXPECTED: dict[str, dict[str, Any]] = json.loads((KEPT / "expected.json").read_text())
QUESTION = "what colour is the dog"


def image(seed: int) -> np.ndarray:
    """Return an image that the expected embeddings were computed of; those of the index are 0 to 3."""
    return np.random.default_rng(seed).integers(0, 256, (40, 56, 3), dtype=np.uint8)


def assert_close(found: torch.Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(found.flatten(), torch.tensor(expected), atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["resnet", "stored_counting"])
def test_models_have_the_same_fingerprint_and_embeddings(name: str) -> None:
    model, expected = openvse.load(KEPT / name), EXPECTED[name]
    assert model.fingerprint == expected["fingerprint"]
    assert_close(model.encode_text(["a red dog runs", "two cats"]).vectors, expected["text"])
    if "image" in expected:
        assert_close(model.encode_image([image(0), image(1)]).vectors, expected["image"])
    else:
        dim = model.image.encoder.feature_dim
        stored = torch.linspace(-1, 1, 2 * 3 * dim).reshape(2, 3, dim)
        with torch.inference_mode():
            embedded = model.image(Inputs(stored, torch.ones(2, 3, dtype=torch.bool)))
        assert_close(embedded.vectors, expected["stored"])


@pytest.mark.parametrize("name", ["resnet", "stored_counting", "answerer", "question_only"])
def test_what_is_loaded_is_saved_the_same(name: str, tmp_path: Path) -> None:
    model = openvse.load(KEPT / name)
    model.save(tmp_path)
    before, after = (
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        for folder in (KEPT / name, tmp_path)
    )
    assert after == before


def test_a_model_that_answers() -> None:
    model, expected = openvse.load(KEPT / "answerer"), EXPECTED["answerer"]
    assert model.fingerprint == expected["fingerprint"]
    local = torch.tensor(json.loads((KEPT / "question.json").read_text())["local"]).unsqueeze(0)
    images = Inputs(local, torch.ones(local.shape[:2], dtype=torch.bool))
    (answered,) = model.answer(images, [QUESTION], top_k=3)
    found = {guess.answer: guess.probability for guess in answered.guesses}
    assert list(found) == [answer for answer, _ in expected["answers"]]
    assert found == pytest.approx(dict(expected["answers"]), abs=2e-5)


def test_a_model_that_answers_without_an_image() -> None:
    model, expected = openvse.load(KEPT / "question_only"), EXPECTED["question_only"]
    assert model.fingerprint == expected["fingerprint"]
    (guesses,) = model.ask(None, [QUESTION], top_k=2)
    found = {guess.answer: guess.probability for guess in guesses}
    assert list(found) == [answer for answer, _ in expected["answers"]]
    assert found == pytest.approx(dict(expected["answers"]), abs=2e-5)


def test_a_store() -> None:
    store, expected = FeatureStore(KEPT / "store", "tiny"), EXPECTED["store"]
    assert (len(store), store.dim) == (expected["items"], expected["dim"])
    first = store.gather(store.positions(["000.jpg"])).values
    assert first.shape == (1, 4, 12)
    assert_close(torch.as_tensor(first).float(), expected["first"])


@pytest.mark.medium
def test_an_index() -> None:
    """Its images are not there; searching needs none of them."""
    model, expected = openvse.load(KEPT / "resnet"), EXPECTED["index"]
    with SearchEngine(model, Index.open(KEPT / "index")) as engine:
        assert_hits(engine.search(["a red dog"], top_k=4)[0], expected["hits"])
        assert_hits(engine.search(Query(image=image(2)), top_k=2), expected["similar"])


def assert_hits(found: list[Hit], expected: list[tuple[str, float]]) -> None:
    assert [hit.id for hit in found] == [name for name, _ in expected]
    assert [hit.score for hit in found] == pytest.approx([score for _, score in expected], abs=2e-5)


def test_the_recipe_of_a_run() -> None:
    recipe = parse_recipe(yaml.safe_load((KEPT / "run" / "recipe.yaml").read_text()))
    assert (recipe.name, recipe.embed_dim) == ("tiny", 16)
