"""Model folders, a store, an index and a run's recipe that openvse 0.1.0 wrote before format 2 read as they did then.

``v1/expected.json`` holds what that version computed: fingerprints, embeddings, answers and hits.
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
from openvse.features import FeatureStore
from openvse.tasks.recipes import parse_recipe
from openvse.types import Inputs

V1 = Path(__file__).parent / "v1"
EXPECTED: dict[str, dict[str, Any]] = json.loads((V1 / "expected.json").read_text())
MODELS = [name for name in EXPECTED if name not in ("answerer", "question_only", "index")]


def image(seed: int) -> np.ndarray:
    """Return the image that the expected embeddings were computed of."""
    return np.random.default_rng(seed).integers(0, 256, (40, 56, 3), dtype=np.uint8)


def assert_close(found: torch.Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(found.flatten(), torch.tensor(expected), atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_models_load_with_the_same_fingerprint_and_embeddings(name: str) -> None:
    model, expected = openvse.load(V1 / name), EXPECTED[name]
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


def test_a_model_that_answers() -> None:
    model, expected = openvse.load(V1 / "answerer"), EXPECTED["answerer"]
    assert model.fingerprint == expected["fingerprint"]
    local = torch.tensor(json.loads((V1 / "question.json").read_text())["local"]).unsqueeze(0)
    images = Inputs(local, torch.ones(local.shape[:2], dtype=torch.bool))
    (answered,) = model.answer(images, ["what colour is the dog"], top_k=3)
    guesses = answered.guesses
    assert [guess.answer for guess in guesses] == [answer for answer, _ in expected["answers"]]
    assert [guess.probability for guess in guesses] == pytest.approx(
        [chance for _, chance in expected["answers"]], abs=1e-5
    )


def test_a_model_that_answers_without_an_image() -> None:
    model, expected = openvse.load(V1 / "question_only"), EXPECTED["question_only"]
    assert model.fingerprint == expected["fingerprint"]
    (guesses,) = model.ask(None, ["what colour is the dog"], top_k=2)
    assert [guess.answer for guess in guesses] == [answer for answer, _ in expected["answers"]]


def test_a_store() -> None:
    store = FeatureStore.open(V1 / "store", "tiny")
    assert (len(store), store.dim) == (16, 12)
    assert store.gather(store.positions(["000.jpg"])).values.shape == (1, 4, 12)


def test_the_recipe_of_a_run() -> None:
    recipe = parse_recipe(yaml.safe_load((V1 / "run" / "recipe.yaml").read_text()))
    assert (recipe.name, recipe.embed_dim) == ("tiny", 16)
