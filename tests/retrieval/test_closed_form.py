"""The closed form: it is the ridge regression that leave-one-out prefers, and a run begins at its scores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openvse.aggregators import PooledLinear
from openvse.datasets import open_corpus
from openvse.errors import DataError, RecipeError
from openvse.evaluation.embed import embed_corpus
from openvse.features.store import FeatureStore
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.retrieval.closed_form import (
    FLOOR,
    MIDDLE_WEIGHTS,
    RIDGES,
    WHITENING,
    Ridge,
    _adapt,
    described_by,
    linear_maps,
    noise_whitening,
    ridge_regression,
    solve,
    whitening,
)
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.tasks.runs import find_run
from openvse.types import Features
from tests.tiny import Recorder, read_metrics, tiny_tree, write_tiny_corpus
from tests.tiny_questions import answering_tree, write_tiny_questions

PHASES = [{"epochs": 1}, {"epochs": 2, "least_images": 1_000}]


def by_the_formula(images: Any, targets: Any, ridge: float) -> tuple[Any, Any, Any]:
    """Return weight and means of the regression with a ridge in its unit, as a textbook solves it."""
    means = images.mean(0), targets.mean(0)
    x, y = images - means[0], targets - means[1]
    unit = (x**2).sum() / len(x)
    return np.linalg.solve(x.T @ x + ridge * unit * np.eye(x.shape[1]), x.T @ y), *means


@pytest.mark.parametrize("shape", [(12, 30), (60, 8)], ids=["dual", "primal"])
def test_the_ridge_is_the_one_with_the_smallest_error_of_left_out_items(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=shape)
    targets = images @ rng.normal(size=(shape[1], 4)) * 0.3 + rng.normal(size=(shape[0], 4))
    found = ridge_regression(images, targets)
    weight, image_mean, target_mean = by_the_formula(images, targets, found.ridge)
    np.testing.assert_allclose(found.weight, weight, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.image_mean, image_mean)
    np.testing.assert_allclose(found.target_mean, target_mean)
    # A ridge is in units of the mean squared length, which a left-out item changes: it is kept as it is with all.
    unit = ((images - image_mean) ** 2).sum() / len(images)
    errors = {ridge: left_out_error(images, targets, ridge * unit) for ridge in RIDGES}
    assert found.ridge == min(errors, key=errors.__getitem__)
    variance = ((targets - target_mean) ** 2).sum()
    assert found.explained == pytest.approx(1 - errors[found.ridge] / variance)


def left_out_error(images: Any, targets: Any, amount: float) -> float:
    """Solve the regression once for each item that is left out, with the mean of the others and of the item itself."""
    x, y = images - images.mean(0), targets - targets.mean(0)
    ones = np.ones((len(x), 1))
    error = 0.0
    for item in range(len(x)):
        rest = np.arange(len(x)) != item
        design, penalty = np.hstack([x, ones]), np.diag([amount] * x.shape[1] + [0])
        solved = np.linalg.solve(design[rest].T @ design[rest] + penalty, design[rest].T @ y[rest])
        error += float(((y[item] - design[item] @ solved) ** 2).sum())
    return error


def test_whitening_takes_the_common_directions_down() -> None:
    rng = np.random.default_rng(0)
    predictions = rng.normal(size=(200, 3)) @ np.diag([10, 1, 0.1]) @ np.linalg.qr(rng.normal(size=(3, 3)))[0]
    white = whitening(predictions, 3)
    variances = np.linalg.eigvalsh(predictions.T @ predictions)[::-1]
    expected = variances * (variances / variances[0] + FLOOR) ** (-2 * WHITENING)
    np.testing.assert_allclose(np.diag(white.T @ (predictions.T @ predictions) @ white), expected)
    np.testing.assert_array_equal(whitening(predictions, 2), white[:, :2])
    np.testing.assert_array_equal(whitening(predictions, 5)[:, 3:], 0)


def test_noise_is_whitened_by_its_inverse_root_and_by_less_from_few_images() -> None:
    errors = np.random.default_rng(0).normal(size=(90, 4)) @ np.diag([4, 2, 1, 0.5])
    covariance = errors.T @ errors
    unit = np.trace(covariance) / 4
    for images, floor in ((1, 15.0), (30, 3 * (1 + 4 / 30))):
        white = noise_whitening(errors, images, 3.0)
        np.testing.assert_allclose(white @ (covariance / unit + floor * np.eye(4)) @ white, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(noise_whitening(np.zeros((5, 4)), 5, 3.0), np.eye(4) / np.sqrt(5.4))


def test_the_errors_of_left_out_images_whiten_both_sides() -> None:
    """Each caption counts, and its error is its distance from what the other images predict for its image."""
    rng = np.random.default_rng(0)
    images, owners = rng.normal(size=(9, 5)), np.array([*range(9), 0, 0, 4])
    sentences, table = rng.normal(size=(12, 4)), rng.normal(size=(2, 4))
    maps, found = linear_maps(images, sentences, owners, table, 4)
    targets = np.array([sentences[owners == each].mean(0) for each in range(9)])
    errors = sentences - targets[owners] + found.errors[owners]
    noise, weight = noise_whitening(errors, 9, 3.0), np.vstack([found.weight, found.scale * table])
    white = noise @ whitening((images - images.mean(0)) @ weight @ noise, 4)
    np.testing.assert_allclose(maps.text, white, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(maps.image, weight @ white, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(maps.text_mean, targets.mean(0))
    np.testing.assert_allclose(maps.image_mean, images.mean(0))


def test_the_middle_gets_the_weight_that_left_out_images_prefer() -> None:
    rng = np.random.default_rng(0)
    u, seen, table = rng.normal(size=(200, 6)), rng.normal(size=(200, 3)), np.zeros((0, 4))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    targets = u @ rng.normal(size=(6, 4)) + 0.3 * seen @ rng.normal(size=(3, 4)) + 0.3 * rng.normal(size=(200, 4))
    owners = np.arange(200)
    errors = {}
    for share in MIDDLE_WEIGHTS:
        z = (seen - seen.mean(0)) / seen.std(0)
        z *= share * np.linalg.norm(u - u.mean(0), axis=1).mean() / np.linalg.norm(z, axis=1).mean()
        errors[share] = ridge_regression(np.hstack([u, z]), targets).explained
    for unit in (1.0, 1000.0):  # the scale of a channel does not matter
        images = np.hstack([u, unit * seen + 7])
        maps, found = linear_maps(images, targets, owners, table, 4, middle=3)
        assert found.explained == pytest.approx(max(errors.values())) and max(errors, key=errors.__getitem__) > 0
        predicted = (images - maps.image_mean) @ maps.image @ np.linalg.inv(maps.text)
        assert ((targets - targets.mean(0) - predicted) ** 2).sum() < (found.errors**2).sum()
    useless = rng.permutation(seen)
    _, without = linear_maps(np.hstack([u, useless]), targets, owners, table, 4, middle=3)
    assert without.explained >= ridge_regression(u, targets).explained


@pytest.mark.parametrize("width", [3, 30])
def test_images_that_are_all_the_same_predict_the_mean(width: int) -> None:
    targets = np.random.default_rng(0).normal(size=(12, 4))
    found = ridge_regression(np.ones((12, width)), targets)
    np.testing.assert_array_equal(found.weight, 0)
    np.testing.assert_allclose(found.target_mean, targets.mean(0))
    assert np.isfinite(whitening(np.zeros((12, 4)), 4)).all()


def test_two_items_are_refused() -> None:
    with pytest.raises(DataError, match="2"):
        ridge_regression(np.eye(2), np.eye(2))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"))


AROUND = {
    "gated": {"name": "gated", "base": "pooled_linear", "pool": "max", "share_projection": False},
    "beside": {"name": "beside", "base": "pooled_linear", "base_dim": 10, "pool": "max"},
    "pooled_linear": {"name": "pooled_linear"},
}


def tree_of(corpus: Path, around: str = "pooled_linear") -> dict[str, Any]:
    tree = tiny_tree(corpus, phases=PHASES)
    tree["start"] = {"name": "closed_form"}
    for side in ("image", "text"):
        tree[side]["encoder"] = {**tree[side]["encoder"]}
        tree[side]["aggregator"] = AROUND[around]
    tree["image"]["encoder"]["projection"] = "none"
    return tree


@pytest.mark.medium
def test_a_solved_model_has_the_scores_of_the_formula(corpus: Path) -> None:
    recipe = parse_recipe(tree_of(corpus))
    data = open_corpus(corpus / "tiny.csv", require_images=False).split("train")
    model = build_model(recipe, captions=data.captions)
    images = FeatureStore(corpus / "features")
    found = solve(model, data, images, None)
    assert isinstance(found, Ridge)
    embedded = embed_corpus(model, data, images)
    with torch.no_grad():
        local = images.gather(images.positions(data.image_ids))
        pooled = local.values.sum(1) / local.mask.sum(1, keepdim=True)
        described = torch.nn.functional.normalize(pooled, dim=1).double().numpy()
    sentences = embed_corpus(described_by(model), data, images).texts.vectors[:, 0].double().numpy()
    maps, again = linear_maps(
        described, sentences, data.relevance.images, np.zeros((0, sentences.shape[1])), recipe.embed_dim
    )
    assert again.ridge == found.ridge
    expected = (described - maps.image_mean) @ maps.image
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(embedded.images.vectors[:, 0].numpy(), expected, atol=1e-4)


@pytest.mark.medium
@pytest.mark.parametrize("around", AROUND)
def test_a_run_begins_at_the_closed_form_and_goes_on_from_its_own_copy(
    corpus: Path, tmp_path: Path, around: str
) -> None:
    watcher = Recorder()
    recipe = parse_recipe(tree_of(corpus, around))
    result = run_recipe(recipe, tmp_path / "run", watcher=watcher)
    records = read_metrics(tmp_path / "run")
    before = next(record for record in records if record["kind"] == "before")
    if around == "beside":
        vectors = load_as(TwoTower, tmp_path / "run" / "start").encode_text(["red dog"]).vectors
        assert vectors[..., :10].any() and not vectors[..., 10:].any(), "step 0 is the closed form alone"
    elif around == "gated":
        run_recipe(parse_recipe(tree_of(corpus)), tmp_path / "alone")
        assert before == next(each for each in read_metrics(tmp_path / "alone") if each["kind"] == "before")
    validations = [record for record in records if record["kind"] == "validation"]
    assert [record["epoch"] for record in validations] == [1], "the phase for many images is left out"
    assert not find_run(str(tmp_path / "run")).unfinished()
    assert result.progress.best_score == max(before["rsum"], validations[0]["rsum"])
    assert any("closed_form" in note for note in watcher.notes)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    again = run_recipe(recipe, tmp_path / "run", resume=True)
    assert again.progress == result.progress


@pytest.mark.medium
def test_too_few_images_for_any_phase_keep_the_closed_form(corpus: Path, tmp_path: Path) -> None:
    tree = tree_of(corpus)
    tree["training"]["phases"] = PHASES[1:]
    result = run_recipe(parse_recipe(tree), tmp_path / "run")
    assert result.progress.best_epoch == 0
    assert load_as(TwoTower, result.best).provenance["start"]["name"] == "closed_form"


@pytest.mark.parametrize("side", ["image", "text"])
def test_an_aggregator_without_a_linear_map_is_refused(corpus: Path, tmp_path: Path, side: str) -> None:
    tree = tree_of(corpus)
    tree[side] = tiny_tree(corpus)[side]
    with pytest.raises(RecipeError, match=f"{side}.aggregator"):
        run_recipe(parse_recipe(tree), tmp_path / "run")


@pytest.mark.parametrize("phases", [[], PHASES[1:]])
def test_phases_that_do_nothing_are_refused_without_a_start(corpus: Path, tmp_path: Path, phases: Any) -> None:
    with pytest.raises(RecipeError, match="least_images"):
        run_recipe(parse_recipe(tiny_tree(corpus, phases=phases)), tmp_path / "run")


def test_questions_have_no_closed_form(tmp_path: Path) -> None:
    folder = write_tiny_questions(tmp_path / "questions")
    with pytest.raises(RecipeError, match="closed_form"):
        run_recipe(parse_recipe(answering_tree(folder) | {"start": {"name": "closed_form"}}), tmp_path / "run")


@pytest.mark.parametrize("related", [True, False])
def test_images_move_towards_their_sentences_only_if_left_out_ones_gain(related: bool) -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(80, 8))
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    turned = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    sentences = images + images @ turned if related else rng.normal(size=(80, 8))
    part = PooledLinear(input_dim=8, embed_dim=8, residual=True)
    with torch.no_grad():
        _adapt(part, images[:60], sentences[:60])
        one = torch.tensor(images[60:], dtype=torch.float32).unsqueeze(1)
        moved = part(Features(one, torch.ones(20, 1, dtype=torch.bool))).vectors[:, 0]
    if not related:
        torch.testing.assert_close(moved, one[:, 0])
        return
    cosines = torch.nn.functional.cosine_similarity(moved, torch.tensor(sentences[60:], dtype=torch.float32))
    assert cosines.mean() > 0.9
