"""The names of classes: their prior against slow loops, the list itself, and the model of names alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import openvse
from openvse.aggregators import PooledLinear
from openvse.backbones import Crops, EfficientNetLite0
from openvse.datasets.openmoji import render_emoji
from openvse.errors import IndexFormatError, ModelError, RecipeError
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.retrieval.closed_form import RIDGES_OF_REST, maps_of_names, ridge_regression, set_maps, whitening
from openvse.retrieval.names import class_names, imagenet_names, names_of
from openvse.search import opening
from openvse.specs.model import TwoTowerSpec
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe
from openvse.types import Features, Inputs

EMOJI = {
    "2602": "umbrella",
    "26BD": "soccer ball",
    "1F528": "hammer",
    "1FA9B": "screwdriver",
    "1F34C": "banana",
    "1F3BB": "violin",
    "1F3C0": "basketball",
    "1FAA3": "bucket",
    "1F3BA": "cornet",
    "1FA97": "accordion",
}
"""Drawings that EfficientNet-Lite0 recognises, each by its first name in ImageNet."""


def left_out(images: Any, targets: Any, amount: float) -> Any:
    """Return the residual of each item from the regression that is solved without it, about the means of all."""
    x, y = images - images.mean(0), targets - targets.mean(0)
    design = np.hstack([x, np.ones((len(x), 1))])
    penalty = np.diag([amount] * x.shape[1] + [0])
    residuals = []
    for item in range(len(x)):
        rest = np.arange(len(x)) != item
        gram = design[rest].T @ design[rest] + penalty
        residuals.append(y[item] - design[item] @ np.linalg.solve(gram, design[rest].T @ y[rest]))
    return np.array(residuals)


def drawn(shape: tuple[int, int], share: float) -> tuple[Any, Any, Any]:
    """Return images, targets and guesses, where a share of the targets is what the guesses say."""
    rng = np.random.default_rng(0)
    images, guesses = rng.normal(size=shape), rng.normal(size=(shape[0], 4))
    targets = images @ rng.normal(size=(shape[1], 4)) * 0.3 + rng.normal(size=(shape[0], 4))
    return images, targets + share * guesses, guesses


@pytest.mark.parametrize("shape", [(12, 30), (60, 8)], ids=["dual", "primal"])
@pytest.mark.parametrize("share", [1.5, -1.0], ids=["helps", "misleads"])
def test_scale_and_ridge_are_those_of_a_slow_loop(shape: tuple[int, int], share: float) -> None:
    images, targets, guesses = drawn(shape, share)
    found = ridge_regression(images, targets, guesses)
    x, y, g = (each - each.mean(0) for each in (images, targets, guesses))
    unit = (x**2).sum() / len(x)
    tried: list[tuple[float, float, Any]] = []
    for ridge in RIDGES_OF_REST:
        a, b = (left_out(images, each, ridge * unit) for each in (targets, guesses))
        scale = max(0.0, (a * b).sum() / (b * b).sum())
        tried.append((ridge, scale, ((a - scale * b) ** 2).sum(1)))
    best = min(tried, key=lambda each: each[2].mean())[2]
    allowed = best.mean() + best.std(ddof=1) / np.sqrt(len(x))
    ridge, scale, errors = [each for each in tried if each[2].mean() <= allowed][-1]
    weight = np.linalg.solve(x.T @ x + ridge * unit * np.eye(shape[1]), x.T @ (y - scale * g))
    assert found.ridge == ridge and bool(scale > 0.5) == (share > 0)
    assert found.scale == pytest.approx(scale, rel=1e-9, abs=1e-9)
    assert found.explained == pytest.approx(1 - errors.sum() / (y**2).sum(), rel=1e-9)
    np.testing.assert_allclose(found.weight, weight, rtol=1e-9, atol=1e-9)


def test_guesses_of_the_wrong_images_switch_themselves_off() -> None:
    images, targets, guesses = drawn((300, 20), 1.5)
    shuffled = ridge_regression(images, targets, np.random.default_rng(1).permutation(guesses))
    plain = ridge_regression(images, targets)
    assert shuffled.scale < 0.1
    assert shuffled.explained == pytest.approx(plain.explained, abs=0.02)
    assert ridge_regression(images, targets, guesses).explained > plain.explained + 0.2


def test_classes_are_the_mean_of_their_probabilities_over_real_elements() -> None:
    torch.manual_seed(0)
    part = PooledLinear(input_dim=6, embed_dim=5, power=0.5, classes=3)
    assert part.classifier is not None
    torch.nn.init.normal_(part.classifier.weight, std=3)
    local, mask = torch.randn(2, 4, 6), torch.tensor([[True] * 4, [True, True, False, False]])
    local[1, 2:] = torch.nan
    described = part.describe(Features(local, mask))
    for item, count in ((0, 4), (1, 2)):
        logits = [part.classifier(local[item, n]) / 2 for n in range(count)]
        expected = sum(torch.softmax(each, 0) for each in logits) / count
        torch.testing.assert_close(described[item, 6:], expected)
    seeing = PooledLinear(input_dim=6, embed_dim=5, power=0.5, middle=4)
    middle = torch.randn(2, 4, 2)
    spread = torch.rand(2, 4, 2)
    features = Features(local, mask, middle=torch.cat([middle, middle**2 + spread**2], dim=-1))
    seen = seeing.describe(features)[:, 6:]
    for item, count in ((0, 4), (1, 2)):
        both = torch.cat([middle, spread], dim=-1)[item, :count].mean(0)
        torch.testing.assert_close(seen[item], both, rtol=1e-3, atol=1e-3)
    with pytest.raises(ModelError, match="middle"):
        seeing.describe(Features(local, mask))
    plain = PooledLinear(input_dim=6, embed_dim=5, power=0.5)
    torch.testing.assert_close(described[:, :6], plain.describe(Features(local, mask)))
    for wrong in ({"classes": 3}, {"middle": 4}):
        with pytest.raises(RecipeError, match="classes = "):
            PooledLinear(input_dim=6, embed_dim=6, residual=True, **wrong)


def test_the_list_has_words_and_a_definition_of_each_class() -> None:
    names = imagenet_names()
    assert len(names) == len(set(names)) == 1000
    assert all(words and meaning for words, _, meaning in (name.partition(": ") for name in names))
    birds, machines = names[134], names[517]  # two classes of one word, which other lists confuse
    assert birds.startswith("crane: large long-necked wading bird") and machines.startswith("crane: lifts")


def test_the_list_is_in_the_order_of_the_classifier(tmp_path: Path) -> None:
    """A classifier is shown drawings of ten things: the name of each is among its best five of a thousand."""
    render_emoji(tmp_path, EMOJI)
    backbone, names = EfficientNetLite0(), imagenet_names()
    classifier = backbone.classifier()
    assert classifier is not None and not classifier.weight.isnan().any()
    for code, expected in EMOJI.items():
        image = Image.open(tmp_path / f"{code}.png").convert("RGB")
        with torch.inference_mode():
            cells = backbone(Inputs(backbone.preprocess(image).unsqueeze(0), None)).local
            best = classifier(cells.mean(1))[0].topk(5).indices.tolist()
        assert any(names[place].startswith(expected) for place in best), expected


def test_a_backbone_without_trained_weights_has_no_classifier() -> None:
    assert EfficientNetLite0(pretrained=False).classifier() is None
    assert Crops(backbone=lambda assets: EfficientNetLite0(pretrained=False)).classifier() is None
    assert Crops().classifier() is not None


ALONE = {
    "embed_dim": 12,
    "image": {
        "encoder": {"name": "efficientnet_lite0", "image_size": 32, "projection": "none"},
        "aggregator": {"name": "pooled_linear", "classes": 1000},
    },
    "text": {"encoder": {"name": "bigru", "word_dim": 4, "min_count": 1}, "aggregator": "pooled_linear"},
}


def test_names_come_from_a_file_of_as_many_lines(tmp_path: Path) -> None:
    spec = TwoTowerSpec.of(ALONE)
    model, file = build_model(spec, captions=["a red dog"]), tmp_path / "names.txt"
    file.write_text("eins\nzwei\n", encoding="utf-8")
    with pytest.raises(RecipeError, match="2 lines"):
        class_names(str(file), model)
    file.write_text("Hund\n" * 1000, encoding="utf-8")
    assert class_names(str(file), model) == ["Hund"] * 1000
    assert class_names("none", model) == ()
    assert class_names("auto", model) == imagenet_names()
    without = {**ALONE, "image": {**ALONE["image"], "aggregator": "pooled_linear"}}
    plain = build_model(TwoTowerSpec.of(without), captions=["a red dog"])
    assert class_names("auto", plain) == ()
    with pytest.raises(RecipeError, match="no classifier"):
        class_names(str(file), plain)


def test_only_a_recipe_that_begins_at_the_closed_form_with_classes_knows_names() -> None:
    for name in ("folder", "folder_lite2"):
        assert names_of(load_recipe(name)) == "auto"
    assert names_of(load_recipe("folder", ["start={name: closed_form, names: none}"])) == "none"
    assert names_of(load_recipe("vse_infinity/folder_cpu")) == "none"


def test_without_captions_images_are_the_whitened_sentences_of_their_classes() -> None:
    rng = np.random.default_rng(0)
    model = build_model(TwoTowerSpec.of(ALONE), captions=["a red dog"]).eval()
    part = model.image.aggregator
    assert isinstance(part, PooledLinear) and part.classifier is not None
    table, mean = rng.normal(size=(1000, model.text.encoder.local_dim)), rng.random(1000)
    set_maps(model, maps_of_names(table, mean, 1280, 12))
    torch.nn.init.normal_(part.classifier.weight, std=0.3)
    features = Features(torch.randn(2, 3, 1280), torch.ones(2, 3, dtype=torch.bool))
    with torch.no_grad():
        likely = part.describe(features)[:, 1280:].double().numpy()
        vectors = part(features).vectors[:, 0].numpy()
    expected = (likely - mean) @ table @ whitening(table - table.mean(0), 12)
    np.testing.assert_allclose(vectors, expected, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures") / "drawings"
    render_emoji(folder, EMOJI)
    return folder


@pytest.fixture(scope="module")
def run(drawings: Path) -> Path:
    """A run of ``folder`` on ten drawings without captions."""
    out = drawings.parent / "run"
    assert "untrained" in repr(openvse.train("folder", data=drawings, out=out))
    return out


def found(engine: Any, query: str) -> list[str]:
    return [EMOJI[hit.id.removesuffix(".png")] for hit in engine.search(query, top_k=3)]


@pytest.mark.slow
def test_a_folder_without_captions_becomes_a_model_like_any_other(drawings: Path, run: Path) -> None:
    model = load_as(TwoTower, run)
    assert model.calibration is None and model.query_bank is None
    update = openvse.index(run, drawings, out=run / "index")
    assert update.items.stored == len(EMOJI), "the run keeps the features of the images"
    engine = openvse.open(run)
    assert "umbrella" in found(engine, "something against the rain")
    assert "banana" in found(engine, "fruit")
    assert {"violin", "cornet"} <= {*found(engine, "a musical instrument that one plays")}
    exported = openvse.export(model, run / "onnx")
    for items in (["fruit"], sorted(drawings.iterdir())):
        np.testing.assert_allclose(
            openvse.open(exported.folder).encode(items).vectors, model.encode(items).vectors.numpy(), atol=3e-6
        )
    again = openvse.train("folder", data=drawings, out=run, overwrite=True)
    assert load_as(TwoTower, again.best).fingerprint == model.fingerprint


@pytest.mark.slow
def test_fewer_than_twenty_captions_make_the_same_model(drawings: Path, run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(drawings, tmp_path / "drawings")
    line = {"file_name": "2602.png", "captions": ["an umbrella"]}
    (folder / "metadata.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    result = openvse.train("folder", data=folder, out=tmp_path / "run")
    assert load_as(TwoTower, result.best).fingerprint == load_as(TwoTower, run).fingerprint


def test_a_recipe_without_names_still_needs_captions(drawings: Path, tmp_path: Path) -> None:
    with pytest.raises(openvse.errors.DataError, match="no captions"):
        openvse.train("folder", drawings, tmp_path / "run", "start={name: closed_form, names: none}")


@pytest.mark.slow
def test_where_nothing_can_be_downloaded_a_folder_is_searched_by_names(
    drawings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, load = shutil.copytree(drawings, tmp_path / "drawings"), opening.load_embedder

    def offline(place: str, **more: Any) -> Any:
        if place == "clip-b32":
            raise ModelError("the hub cannot be reached")
        return load(place, **more)

    monkeypatch.setattr(opening, "load_embedder", offline)
    monkeypatch.delenv(opening.MODEL_VARIABLE, raising=False)
    with pytest.raises(IndexFormatError, match=r"clip-b32, a download of 604 MB.*--model names"):
        openvse.open(folder)
    with pytest.raises(ModelError, match="hub"):
        openvse.open(folder, model="clip-b32", make=True)
    assert "umbrella" in found(openvse.open(folder, make=True), "something against the rain")
    assert "the hub cannot be reached" in caplog.text and "not people, colours or counts" in caplog.text
    assert "openvse index clip-b32" in caplog.text and "604 MB" in caplog.text
    (folder / "2602.png").unlink()
    assert "umbrella" not in found(openvse.open(folder, model="names"), "something against the rain")
