"""What a command says to do next, and sentences before tables; a run's folder stands for its model and its index."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from album import write_album, write_recipe

from openvse.errors import RecipeError
from openvse.retrieval.build import build_objective
from openvse.tasks.recipes import load_recipe
from tests.naming import names, refusal

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def visit(tmp_path_factory, works) -> tuple[Path, str]:
    """Train two runs whose recipes differ in a pooling, and return their place and what the first one said."""
    place = tmp_path_factory.mktemp("next")
    write_recipe(place / "tiny.yaml", write_album(place / "album"))
    (place / "own parts.py").write_text("")
    first = works("train", place / "tiny.yaml", "--out", place / "run", "--plugin", place / "own parts.py")
    works("train", place / "tiny.yaml", "image.aggregator=mean", "seed=1", "--out", place / "other")
    return place, first.stderr


def test_the_commands_that_a_run_names_work_as_they_stand(visit: tuple[Path, str], invoke, works, monkeypatch) -> None:
    place, said = visit
    monkeypatch.setattr("openvse.cli.commands.search.on_a_terminal", lambda: True)
    commands = [shlex.split(each) for each in re.findall(r"openvse (.+)", said)]
    plugin = ["--plugin", str(place / "own parts.py")]
    assert [words[:3] for words in commands] == [[*plugin, name] for name in ("evaluate", "index", "search")]
    for around in ([*plugin, "train", "no_recipe"], ["train", "no_recipe", *plugin], ["list", "recipes", *plugin]):
        told = re.findall("openvse (.*)list recipes", invoke(*around).output)
        assert told and all(shlex.split(each) == plugin for each in told), (around, told)
    for words in commands:
        done = works(*(word if word != "a sentence" else "red sky" for word in words))
    assert (place / "run" / "index" / "index.json").is_file()
    assert "(red" in done.stdout and "words" in done.stderr, "matched words are explained"
    again = invoke("index", place / "run", place / "album", "--out", place / "run" / "index")
    assert "20 unchanged" in again.stdout and "new" not in again.stdout
    # The index is of an earlier model after a retraining, so the command that is printed then replaces it.
    anew = ("train", place / "tiny.yaml", "seed=2", "--out", place / "run", "--overwrite")
    (command,) = re.findall("openvse (index .+)", invoke(*anew).stderr)
    assert invoke(*shlex.split(command)).exit_code == 0, command


def test_an_evaluation_begins_with_a_sentence(visit: tuple[Path, str], invoke) -> None:
    place, _ = visit
    done = invoke("evaluate", place / "run", "--on", place / "album")
    sentence = done.stdout.split("\n\n")[1]
    assert sentence.startswith("Of 4 images") and "100" in sentence and "RSUM" in sentence


def test_a_comparison_names_the_keys_in_which_runs_differ(visit: tuple[Path, str], works) -> None:
    place, _ = visit
    (place / "writer.lock").touch()  # as beside the runs of a sweep
    (place / "stores").mkdir()
    listed = [place / each for each in ("other", "run", "stores", "writer.lock")]
    done = works("compare", *reversed(listed), "--on", place / "album")
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("other differs from run in ")]
    assert "image.aggregator" in line and "seed" not in line


def test_keys_of_other_programs_are_understood_or_led_to_the_right_one() -> None:
    assert load_recipe("folder", "data=photos").data.source == "photos"
    for key, meant in (
        ("training.epochs", "training.phases.0.epochs"),
        ("epochs", "(or .1"),
        ("lr", "optimizer.learning_rate"),
        ("batch_size", "training.batch_size"),
        ("margin", "objective.ranking.criterion.margin?"),
        ("weight_decay", "optimizer.weight_decay?"),
        ("optimizer.temperature", "objective.ranking.criterion.temperature?"),
    ):
        assert names(refusal(RecipeError, load_recipe, "folder", {key: 1}), meant)
    with pytest.raises(RecipeError, match=re.escape("objective.ranking.criterion.margin?")):
        recipe = load_recipe("folder", {"objective.ranking.margin": 1})
        build_objective(recipe, recipe.training.phases[0])


def test_a_folder_in_place_of_an_override_is_led_to_its_key(tmp_path: Path) -> None:
    assert names(refusal(RecipeError, lambda: load_recipe("folder", str(tmp_path))), f"data.source={tmp_path}")


def test_too_few_images_for_training_is_said_in_a_sentence(visit: tuple[Path, str], works) -> None:
    place, _ = visit
    tree = yaml.safe_load((place / "tiny.yaml").read_text())
    tree["training"]["phases"] = [{"epochs": 1}, {"epochs": 1, "least_images": 300}]
    (place / "few.yaml").write_text(yaml.safe_dump(tree))
    done = works("train", place / "few.yaml", "--out", place / "few")
    assert re.search(r"12 images for training.* 1 of 2 .*300", done.stderr), done.stderr
