"""Captions far from their image, and how the list of them is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openvse.analysis.suspicious import (
    FoldPlan,
    PairScores,
    analyze_suspicious,
    cut_folds,
    measure_precision,
    score_folds,
    swap_captions,
)
from openvse.datasets import open_corpus
from openvse.errors import OpenVSEError, TrainingError
from openvse.tasks.load import load
from tests.cli.album import write_album, write_recipe
from tests.tiny import write_tiny_corpus


def test_folds_are_even_and_drawn(tmp_path: Path) -> None:
    corpus = open_corpus(write_album(tmp_path / "album", 13))
    fold = cut_folds(corpus, 3, seed=1)
    assert sorted(np.bincount(fold).tolist()) == [4, 4, 5]
    assert (fold == cut_folds(corpus, 3, seed=1)).all() and (fold != cut_folds(corpus, 3, seed=2)).any()
    with pytest.raises(OpenVSEError, match="13 images.*4 folds"):
        cut_folds(corpus, 4, seed=0)


def test_swapped_captions_leave_their_image(tmp_path: Path) -> None:
    corpus = open_corpus(write_album(tmp_path / "album", 20), merge_captions=False)
    swapped, changed = swap_captions(corpus, 0.4, seed=0)
    before, after = corpus.relevance, swapped.relevance
    assert sorted(after.texts) == sorted(before.texts)
    assert changed.sum() == 16 and (before.texts != after.texts)[changed].all()
    own = set(zip(before.images.tolist(), before.texts.tolist(), strict=True))
    pairs = zip(after.images.tolist(), after.texts.tolist(), changed.tolist(), strict=True)
    assert all(((image, text) not in own) is exchanged for image, text, exchanged in pairs)


def test_precision_from_a_short_list() -> None:
    exchanged = np.array([False, True, False, True, False, False, False, False, False, False])
    measured = measure_precision(np.array([1, 0, 3, 2, 4, 5, 6, 7, 8, 9]), exchanged)
    assert (measured.exchanged, measured.chance) == (2, 20.0)
    assert measured.at_number == 50.0 and measured.first == 100.0
    assert measured.average == pytest.approx(100 * (1 + 2 / 3) / 2)


@pytest.mark.slow
def test_swapped_captions_are_found(tmp_path: Path) -> None:
    """Every part is trained without the pairs that it scores, and a second call trains nothing."""
    folder = write_tiny_corpus(tmp_path / "data", train=60, validation=4)
    corpus = open_corpus(folder / "tiny.csv", require_images=False).split("train")
    swapped, changed = swap_captions(corpus, 0.1, seed=0)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(
        "name: tiny\nembed_dim: 16\n"
        "image: {encoder: {name: precomputed, feature_dim: 12, projection: linear}, aggregator: mean}\n"
        "text: {encoder: {name: bigru, word_dim: 8, min_count: 1}, aggregator: mean}\n"
        "objective: {ranking: {name: contrast, miner: all, criterion: {name: info_nce}, reduction: mean}}\n"
        "training: {batch_size: 16, device: cpu, phases: [{epochs: 12}]}\noptimizer: {learning_rate: 2.0e-2}\n"
    )
    plan = FoldPlan(
        str(recipe),
        (f"data.features={folder / 'features'}",),
        swapped,
        cut_folds(swapped, 2, 0),
        tmp_path / "f",
    )
    scores = score_folds(plan)
    held = {swapped.image_ids[at] for at in np.flatnonzero(plan.fold == 0)}
    listed = (tmp_path / "f" / "fold_1.csv").read_text()
    assert not any(name in listed for name in held) and ",validation" in listed
    found = analyze_suspicious(swapped, scores, count=4, exchanged=changed)
    number, precision, _, average, chance = found.summary.rows[0]
    assert number == 12 and precision > 3 * chance and average > 3 * chance
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "f").rglob("model.safetensors")}
    again = score_folds(plan)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    np.testing.assert_array_equal(again.standing, scores.standing)
    other = replace(plan, corpus=swapped.select(np.arange(len(swapped) - 2)), fold=plan.fold[:-2])
    with pytest.raises(TrainingError, match=r"data are not those .*: train: .* choose another --out"):
        score_folds(other)
    pair = int(np.flatnonzero(plan.fold[swapped.relevance.images] == 0)[3])
    image, text = int(swapped.relevance.images[pair]), int(swapped.relevance.texts[pair])
    assert scores.score[pair] == pytest.approx(_score(plan, image, text), abs=1e-5)


def _score(plan: FoldPlan, image: int, text: int) -> float:
    from openvse.features import FeatureStore
    from openvse.model import embed

    model = load(plan.folder / "fold_1" / "best")
    store = FeatureStore.open(Path(plan.overrides[0].partition("=")[2]))
    inputs = store.gather(store.positions([plan.corpus.image_ids[image]]))
    images = embed(model.image, [(np.array([0]), inputs)], "cpu")
    return float(model.score(images, model.encode_text([plan.corpus.captions[text]])))


@pytest.mark.medium
def test_the_page_shows_the_worst_first(tmp_path: Path) -> None:
    corpus = open_corpus(write_album(tmp_path / "album", 6), merge_captions=False)
    count = len(corpus.relevance.images)
    standing = np.linspace(3, -1, count)
    fits = (corpus.relevance.images + 1) % 6
    scores = PairScores(standing / 10, standing, np.full(count, 3), fits)
    found = analyze_suspicious(corpus, scores, count=2)
    assert [row[1] for row in found.tables[""].rows[:2]] == [corpus.image_ids[5]] * 2
    page = found.pages[""]
    assert page.count("<li>") == 2 and page.count("data:image/webp") == 4
    assert "Its image also has: " in page and "http" not in page.replace("http-equiv", "")
    assert {path.name for path in found.write(tmp_path / "o")} == {
        "suspicious.csv", "suspicious.html", "suspicious.png", "suspicious.svg"
    }  # fmt: skip


@pytest.mark.slow
def test_images_without_stored_features_are_extracted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken one is told, and is not in the list."""
    album = write_album(tmp_path / "album", 16)
    recipe = write_recipe(tmp_path / "tiny.yaml", album)
    (album / "03.png").write_bytes((album / "03.png").read_bytes()[:90])
    corpus = open_corpus(album)
    plan = FoldPlan(str(recipe), (), corpus, cut_folds(corpus, 2, 0), tmp_path / "f")
    scores = score_folds(plan)
    broken = corpus.relevance.images == corpus.image_ids.index("03.png")
    assert (scores.standing[~broken] != 0).all() and np.isnan(scores.standing[broken]).all()
    found = analyze_suspicious(corpus, scores)
    assert len(found.tables[""].rows) == (~broken).sum()
    assert "03.png" in caplog.text and found.write(tmp_path / "o")
    assert (tmp_path / "f" / "features").is_dir() and not (tmp_path / "f" / "fold_1" / "features").exists()
