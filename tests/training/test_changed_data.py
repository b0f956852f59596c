"""A run that goes on with other data than before: what is told, what begins anew, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from openvse.corpus import Corpus, SplitData, also_trained_on, seen_in_training, training_sample
from openvse.corpus.corpus import Record, build_corpus
from openvse.errors import TrainingError
from openvse.features import FeatureStore, FeatureStoreWriter
from openvse.model import read_config
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import train
from openvse.training.checkpoint import load_checkpoint
from openvse.training.records import read_records
from tests.tiny import Recorder, Stop, tiny_recipe, tiny_tree, write_tiny_corpus

EPOCHS = [{"epochs": 4}]
OTHERS = "the data are not those with which the run was trained so far"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_tiny_corpus(tmp_path / "tiny")


def change_lines(corpus: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of the data set below its header."""
    header, *lines = (corpus / "tiny.csv").read_text().splitlines()
    (corpus / "tiny.csv").write_text("\n".join([header, *change(lines)]) + "\n")


def half_of_validation(lines: list[str]) -> list[str]:
    return [line for line in lines if "validation" not in line or line < "036"]


def twice(lines: list[str]) -> list[str]:
    """Give each training image as many captions again, of the same words."""
    parts = [line.split(",") for line in lines if "train" in line]
    rotated = [(name, " ".join([*text.split()[1:], text.split()[0]]), split) for name, text, split in parts]
    return [*lines, *map(",".join, rotated)]


def turned(lines: list[str]) -> list[str]:
    """Put the words of the first caption in another order."""
    name, caption, split = lines[0].split(",")
    return [",".join((name, " ".join(sorted(caption.split())), split)), *lines[1:]]


def two_moved(lines: list[str]) -> list[str]:
    """Move two images to validation, and leave their words to another image of training."""
    kept = [line.replace("train", "validation") if line < "002" else line for line in lines]
    return kept + [f"002.jpg{line[7:]}" for line in lines if line < "002"]


def stopped(recipe: RetrievalRecipe, folder: Path, step: int) -> None:
    with pytest.raises(Stop):
        train(recipe, folder, watcher=Recorder(step))


def resumed(recipe: RetrievalRecipe, folder: Path) -> Recorder:
    watcher = Recorder()
    train(recipe, folder, resume=True, watcher=watcher)
    return watcher


def told(watcher: Recorder) -> str:
    return "\n".join(watcher.warnings)


@pytest.mark.medium
def test_the_best_epoch_is_not_chosen_across_two_validation_sets(corpus: Path, tmp_path: Path) -> None:
    recipe, run = tiny_recipe(corpus, phases=EPOCHS), tmp_path / "run"
    stopped(recipe, run, 9)  # two epochs of four steps are over
    before, earlier = load_checkpoint(run / "last.pt")[0], read_config(run / "best").provenance["validation"]
    change_lines(corpus, half_of_validation)
    watcher = resumed(recipe, run)
    assert f"{OTHERS}: validation: 8 images and 16 pairs then, 4 images and 8 pairs now" in told(watcher)
    assert f"best_epoch_{before.best_epoch}/" in told(watcher)
    after, found = load_checkpoint(run / "last.pt")[0], read_config(run / "best").provenance["validation"]
    scores = [report.metrics["rsum"] for report in watcher.epochs]
    assert len(scores) == 2 and after.best_score == max(scores) and after.best_epoch in (3, 4)
    assert watcher.epochs[0].best
    assert found["data"]["images"] == 4 and found["epoch"] == after.best_epoch
    assert read_config(run / f"best_epoch_{before.best_epoch}").provenance["validation"] == earlier
    assert earlier["data"]["digest"] != found["data"]["digest"]
    sizes = [record["validation_images"] for record in read_records(run / "metrics.jsonl").of("data")]
    assert sizes == [8, 4]


@pytest.mark.medium
def test_a_stop_before_the_first_validation_after_a_change_loses_nothing(
    corpus: Path, tmp_path: Path
) -> None:
    recipe, run = tiny_recipe(corpus, phases=EPOCHS, checkpoint_every_s=1e-6), tmp_path / "run"
    stopped(recipe, run, 5)
    change_lines(corpus, half_of_validation)
    with pytest.raises(Stop):
        train(recipe, run, resume=True, watcher=Recorder(7))
    assert read_config(run / "best").provenance["validation"]["epoch"] == 1
    watcher = resumed(recipe, run)
    assert OTHERS not in told(watcher)  # it has been told, and the run goes on with these data
    assert read_config(run / "best_epoch_1").provenance["validation"]["data"]["images"] == 8
    assert read_config(run / "best").provenance["validation"]["data"]["images"] == 4


@pytest.mark.medium
@pytest.mark.parametrize("size_stays", [False, True])
def test_an_epoch_begins_anew_if_its_positions_mean_other_pairs(
    corpus: Path, tmp_path: Path, size_stays: bool
) -> None:
    recipe, run = tiny_recipe(corpus, phases=EPOCHS, checkpoint_every_s=1e-6), tmp_path / "run"
    stopped(recipe, run, 7)  # in the second epoch
    done = load_checkpoint(run / "last.pt")[0].step
    assert done
    change_lines(corpus, turned if size_stays else twice)
    watcher = resumed(recipe, run)
    assert f"{OTHERS}: train: 32 images and 64 pairs then" in told(watcher)
    assert ("begins anew" in told(watcher)) is not size_stays
    assert watcher.steps[0].step == (done + 1 if size_stays else 1)
    assert watcher.steps[-1].step == (4 if size_stays else 8)
    assert "best_epoch" not in told(watcher) and not [*run.glob("best_epoch_*")]


@pytest.mark.medium
def test_another_order_of_the_training_pairs_is_told_and_one_of_validation_means_nothing(
    corpus: Path, tmp_path: Path
) -> None:
    records = [Record(f"{number}.jpg", Path(f"{number}.jpg"), [f"a {number}"]) for number in range(5)]
    one, other = (build_corpus("some", each, require_images=False) for each in (records, records[::-1]))
    ordered, loose = (
        [SplitData.of_pairs(each, None, ordered=flag) for each in (one, other)] for flag in (True, False)
    )
    assert "another order" in ordered[0].change(ordered[1])
    assert loose[0].change(loose[1]) == ""


@pytest.mark.medium
def test_other_stored_features_of_the_same_images_are_told(corpus: Path, tmp_path: Path) -> None:
    recipe, run = tiny_recipe(corpus, phases=EPOCHS), tmp_path / "run"
    stopped(recipe, run, 5)
    store = FeatureStore(corpus / "features")
    ids = store.ids
    values = store.gather(store.positions(ids)).values
    for path in (corpus / "features").iterdir():
        path.unlink()
    with FeatureStoreWriter(corpus / "features", fingerprint="tiny", dim=12, dtype="float32") as writer:
        for name, local in zip(ids, values, strict=True):
            writer.add(name, local + (name in ("003.jpg", "035.jpg")))
    watcher = resumed(recipe, run)
    assert "train: 32 images and 64 pairs then and now, but the content of 1 of 32" in told(watcher)
    assert "(first: 035.jpg)" in told(watcher) and (run / "best_epoch_1").is_dir()


def test_features_extracted_again_are_the_same_and_other_images_are_not(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(3)]
    for number, name in enumerate(names):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / name)
    corpus = build_corpus("some", [Record(name, tmp_path / name, ["a dot"]) for name in names])
    before = SplitData.of_pairs(corpus, None, ordered=True)
    assert before.change(SplitData.of_pairs(corpus, None, ordered=True)) == ""
    (tmp_path / names[0]).touch()
    assert before.change(SplitData.of_pairs(corpus, None, ordered=True)) == ""
    Image.new("RGB", (8, 8), (77, 0, 0)).save(tmp_path / names[1])
    now = SplitData.of_pairs(corpus, None, ordered=True)
    assert before.other_images(now) == [names[1]]

    def of(numbers: np.ndarray) -> SplitData:
        content = {name: row.tolist() for name, row in zip(names, numbers, strict=True)}
        return SplitData("pairs", 3, 3, "", content)

    numbers = np.random.default_rng(0).normal(size=(3, 16))
    rounded = numbers.astype(np.float16).astype(float)
    assert not of(numbers).other_images(of(rounded))
    assert of(numbers).other_images(of(numbers[[0, 2, 1]])) == names[1:]


@pytest.mark.medium
def test_other_words_are_refused_with_the_reason(corpus: Path, tmp_path: Path) -> None:
    recipe, run = tiny_recipe(corpus, phases=EPOCHS), tmp_path / "run"
    stopped(recipe, run, 5)
    change_lines(corpus, lambda lines: [line.replace("dog", "hound") for line in lines])  # as many words
    with pytest.raises(TrainingError, match=f"{OTHERS}.*words.*--start"):
        train(recipe, run, resume=True)


@pytest.mark.medium
def test_a_finished_run_stays_as_it_is(corpus: Path, tmp_path: Path) -> None:
    recipe, run = tiny_recipe(corpus, phases=EPOCHS), tmp_path / "run"
    best = train(recipe, run).progress
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    change_lines(corpus, half_of_validation)
    watcher = Recorder()
    assert train(recipe, run, resume=True, watcher=watcher).progress == best
    assert OTHERS in told(watcher) and "all epochs are done" in told(watcher)
    assert all(path.read_bytes() == content for path, content in kept.items())


@pytest.mark.medium
def test_data_at_another_place_are_the_same_if_their_pairs_are(corpus: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "moved"
    stopped(tiny_recipe(corpus, phases=EPOCHS), run, 5)
    corpus.rename(other)
    watcher = resumed(tiny_recipe(other, phases=EPOCHS), run)
    assert len(watcher.epochs) == 3 and OTHERS not in told(watcher)
    written = yaml.safe_load((run / "recipe.yaml").read_text())["data"]
    assert str(other) in written["source"] and str(corpus) not in str(written)
    again = write_tiny_corpus(tmp_path / "again")
    change_lines(again, turned)  # other pairs at another place
    with pytest.raises(TrainingError, match="--out"):
        train(tiny_recipe(again, phases=EPOCHS), run, resume=True)


@pytest.mark.medium
def test_the_start_is_measured_again_on_other_validation_data(corpus: Path, tmp_path: Path) -> None:
    train(tiny_recipe(corpus, phases=[{"epochs": 1}]), tmp_path / "base")
    tree = tiny_tree(corpus, phases=EPOCHS) | {"start": str(tmp_path / "base")}
    run = tmp_path / "run"
    with pytest.raises(Stop):
        train(parse_recipe(tree), run, watcher=Recorder(9))
    change_lines(corpus, half_of_validation)
    watcher = Recorder()
    train(parse_recipe(tree), run, resume=True, watcher=watcher)
    before = [record["rsum"] for record in read_records(run / "metrics.jsonl").of("before")]
    written = json.loads((run / "before_after.json").read_text())["metrics"]["rsum"]
    assert len(before) == 2 and written["before"] == before[1]
    assert written["after"] == max(report.metrics["rsum"] for report in watcher.epochs)


@pytest.mark.medium
def test_images_that_move_from_training_to_validation_are_told_as_leakage(
    corpus: Path, tmp_path: Path
) -> None:
    recipe, run = tiny_recipe(corpus, phases=EPOCHS), tmp_path / "run"
    stopped(recipe, run, 5)

    change_lines(corpus, two_moved)
    assert "leakage: the run was trained on 2 of the 10 images" in told(resumed(recipe, run))
    assert read_config(run / "best").provenance["data"]["trained_on"]["images"] == 32
    again = Recorder()
    tree = tiny_tree(corpus, phases=[{"epochs": 1}]) | {"start": str(run)}
    train(parse_recipe(tree), tmp_path / "again", watcher=again)
    assert f"leakage: {run} was trained on 2 of the 10 images" in told(again)


def test_a_model_remembers_all_data_that_it_was_trained_on() -> None:
    def some(first: int, last: int) -> Corpus:
        names = [f"{number}.jpg" for number in range(first, last)]
        return build_corpus("some", [Record(n, Path(n), [f"text {n}"]) for n in names], require_images=False)

    for many in (10, 3000):
        one, other = ({"trained_on": training_sample(some(n * many, (n + 1) * many))} for n in range(2))
        merged = {"data": also_trained_on(one, {"data": other})}
        everything = seen_in_training(merged, some(0, 2 * many))
        assert everything.seen == everything.checked > 9
        assert seen_in_training(merged, some(2 * many, 3 * many)).seen == 0
        assert 0 < seen_in_training(merged, some(0, many)).seen < everything.seen
    assert also_trained_on({"name": "some"}, {"data": one}) == {"name": "some"}
    same: Any = also_trained_on(one, {"data": one})
    assert same["trained_on"]["sample"] == one["trained_on"]["sample"]
