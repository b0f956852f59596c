"""A run that goes on knows its data by their pairs: at another place, with other pairs, in another order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from openvse.corpus import Corpus
from openvse.corpus.corpus import Record, build_corpus
from openvse.corpus.trained_on import SplitData, also_trained_on, seen_in_training, training_sample
from openvse.errors import TrainingError
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from tests.naming import names
from tests.tiny import Recorder, Stop, tiny_recipe, tiny_tree, write_tiny_corpus

EPOCHS = [{"epochs": 4}]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_tiny_corpus(tmp_path / "tiny")


def change_lines(corpus: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of the data set below its header."""
    header, *lines = (corpus / "tiny.csv").read_text().splitlines()
    (corpus / "tiny.csv").write_text("\n".join([header, *change(lines)]) + "\n")


def half_of_validation(lines: list[str]) -> list[str]:
    return [line for line in lines if "validation" not in line or line < "036"]


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
        run_recipe(recipe, folder, watcher=Recorder(step))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("change", "splits"),
    [(half_of_validation, ["validation"]), (turned, ["train"]), (two_moved, ["train", "validation"])],
)
def test_a_run_goes_on_with_its_own_pairs_alone(
    corpus: Path, tmp_path: Path, change: Callable[[list[str]], list[str]], splits: list[str]
) -> None:
    recipe, run = tiny_recipe(corpus, phases=EPOCHS), tmp_path / "run"
    stopped(recipe, run, 9)
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    table = (corpus / "tiny.csv").read_text()
    change_lines(corpus, change)
    with pytest.raises(TrainingError, match="--start") as refused:
        run_recipe(recipe, run, resume=True)
    assert [name for name in ("train", "validation") if f"{name}: " in str(refused.value)] == splits
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == kept
    (corpus / "tiny.csv").write_text(table)
    watcher = Recorder()
    run_recipe(recipe, run, resume=True, watcher=watcher)
    assert [report.epoch for report in watcher.epochs] == [3, 4]


def test_the_order_of_the_pairs_counts_in_training_and_not_in_validation() -> None:
    records = [Record(f"{number}.jpg", Path(f"{number}.jpg"), [f"a {number}"]) for number in range(5)]
    one, other = (build_corpus("some", each, require_images=False) for each in (records, records[::-1]))
    for ordered in (True, False):
        assert (SplitData.of_pairs(one, ordered=ordered) == SplitData.of_pairs(other, ordered=ordered)) is not ordered


@pytest.mark.medium
def test_data_at_another_place_are_the_same_if_their_pairs_are(corpus: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "moved"
    stopped(tiny_recipe(corpus, phases=EPOCHS), run, 5)
    corpus.rename(other)
    watcher = Recorder()
    run_recipe(tiny_recipe(other, phases=EPOCHS), run, resume=True, watcher=watcher)
    assert len(watcher.epochs) == 3
    written = yaml.safe_load((run / "recipe.yaml").read_text())["data"]
    assert str(other) in written["source"] and str(corpus) not in str(written)
    again = write_tiny_corpus(tmp_path / "again")
    change_lines(again, turned)  # other pairs at another place
    with pytest.raises(TrainingError, match="--out"):
        run_recipe(tiny_recipe(again, phases=EPOCHS), run, resume=True)


@pytest.mark.medium
def test_images_that_move_from_training_to_validation_are_told_as_leakage(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    stopped(tiny_recipe(corpus, phases=EPOCHS), run, 5)
    change_lines(corpus, two_moved)
    again = Recorder()
    tree = tiny_tree(corpus, phases=[{"epochs": 1}]) | {"start": str(run)}
    run_recipe(parse_recipe(tree), tmp_path / "again", watcher=again)
    assert names("\n".join(again.warnings), "leakage: ", 2, 10)


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
