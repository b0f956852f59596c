"""Whole runs of visual question answering on a tiny set: learning, resuming, and refusing."""

import json
import math
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from openvse.datasets import open_questions
from openvse.errors import DataError, RecipeError, TrainingError
from openvse.features.store import FeatureStore
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.inputs import RunInputs
from openvse.types import Inputs, QuestionBatch
from openvse_papers.vqa.answerer import Answerer, predict
from openvse_papers.vqa.training import cross_entropy, open_answering
from tests.naming import names, refusal
from tests.tiny import Recorder, Stop, read_metrics
from tests.tiny_questions import answering_recipe, answering_tree, question_only, write_tiny_questions


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_questions(tmp_path_factory.mktemp("tiny"))


def share_right(run: Path, questions: Path, split: str) -> float:
    """Return the share of questions that the best model of a run answers as the data do."""
    asked = open_questions(f"question_folder:{questions}", require_images=False).split(split)
    found = predict(load_as(Answerer, run / "best"), asked, FeatureStore(questions / "features"))
    assert found.questions == asked
    right = [said in question.answers for said, question in zip(found.answers, asked.questions, strict=True)]
    return sum(right) / len(right)


@pytest.mark.medium
def test_a_run_leaves_everything_behind(questions: Path, tmp_path: Path) -> None:
    watcher = Recorder()
    result = run_recipe(answering_recipe(questions), tmp_path, watcher=watcher)
    assert {path.name for path in tmp_path.iterdir()} >= {"recipe.yaml", "last.pt", "metrics.jsonl", "best"}
    (words,) = [record for record in read_metrics(tmp_path) if record["kind"] == "vocabulary"]
    assert words["num_words"] == words["num_known"] == 8 and words["num_tokens"] == 32 * 5
    assert len(watcher.steps) == 3 * 4  # 32 questions in batches of 8
    assert set(watcher.steps[0].terms) == {"loss"} and watcher.steps[0].unit == "questions"
    best = max(watcher.epochs, key=lambda report: report.metrics["accuracy"])
    assert (result.progress.metric, result.progress.best_score) == ("accuracy", best.metrics["accuracy"])
    assert result.progress.best_epoch == best.epoch
    assert best.summary.startswith(f"accuracy {best.metrics['accuracy']:5.2f}")
    # The model folder alone gives the validation result again.
    assert 100 * share_right(tmp_path, questions, "validation") == pytest.approx(best.metrics["accuracy"])


@pytest.mark.medium
def test_it_learns(questions: Path, tmp_path: Path) -> None:
    watcher = Recorder()
    run_recipe(answering_recipe(questions, phases=[{"epochs": 8}]), tmp_path, watcher=watcher)
    assert watcher.epochs[-1].loss < 0.8 * watcher.epochs[0].loss
    assert share_right(tmp_path, questions, "train") > 0.5  # one in five by chance


@pytest.mark.medium
def test_questions_alone_cannot_tell_images_apart(questions: Path, tmp_path: Path) -> None:
    tree = question_only(answering_tree(questions, phases=[{"epochs": 6}]))
    del tree["data"]["features"]  # no image is there either
    run_recipe(parse_recipe(tree), tmp_path)
    model = load_as(Answerer, tmp_path / "best")
    assert model.ask(None, ["what colour is the dog"]) == model.ask("nowhere.jpg", ["what colour is the dog"])
    assert share_right(tmp_path, questions, "train") < 0.75


@pytest.mark.medium
def test_a_run_that_is_stopped_again_and_again_resumes_to_the_same_bits(questions: Path, tmp_path: Path) -> None:
    recipe = answering_recipe(questions, checkpoint_every_s=1e-6)
    run_recipe(recipe, tmp_path / "whole")
    for stop in (2, 4, 7):  # within an epoch, at its last step, in a later phase
        refusal(Stop, run_recipe, recipe, tmp_path / "parts", watcher=Recorder(stop), resume=True)
    run_recipe(recipe, tmp_path / "parts", resume=True)
    assert read_metrics(tmp_path / "parts") == read_metrics(tmp_path / "whole")
    whole, parts = (load_file(tmp_path / name / "best" / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.medium
def test_other_answers_of_the_same_questions_are_other_data(tmp_path: Path) -> None:
    folder = write_tiny_questions(tmp_path / "tiny")
    recipe, run = answering_recipe(folder), tmp_path / "run"
    refusal(Stop, run_recipe, recipe, run, watcher=Recorder(6))
    lines = (folder / "metadata.jsonl").read_text().splitlines()
    last = max(number for number, line in enumerate(lines) if '"validation"' in line)
    lines[last] = json.dumps(json.loads(lines[last]) | {"answer": "no colour"})
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    assert names(refusal(TrainingError, run_recipe, recipe, run, resume=True), "validation", "6", "12")


def test_the_loss_is_summed_over_answers_and_averaged_over_questions() -> None:
    logits, targets = torch.randn(3, 5, dtype=torch.float64), torch.rand(3, 5, dtype=torch.float64)
    slow = 0.0
    for question in range(3):
        for answer in range(5):
            chance = 1 / (1 + math.exp(-logits[question, answer]))
            worth = float(targets[question, answer])
            slow -= worth * math.log(chance) + (1 - worth) * math.log(1 - chance)
    ids = Inputs(torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1, dtype=torch.bool))
    batch = QuestionBatch(None, torch.zeros(3, dtype=torch.int64), ids, targets.float(), divisor=3.0)
    assert float(cross_entropy(logits, batch)) == pytest.approx(slow / 3, rel=1e-5)


@pytest.mark.medium
def test_nan_stops_and_names_the_batch(questions: Path, tmp_path: Path) -> None:
    tree = answering_tree(questions, clip_norm=None)
    tree["optimizer"]["learning_rate"] = 1e30
    tree["training"]["phases"] = [{"epochs": 3}]
    with pytest.raises(TrainingError, match=r"(nan|inf).*\d+ .*8 .*\d+\.jpg#\d"):
        run_recipe(parse_recipe(tree), tmp_path)


def test_at_collapse_the_model_knows_frequencies_alone(questions: Path, tmp_path: Path) -> None:
    recipe = answering_recipe(questions, batch_size=32)
    task = open_answering(recipe, RunInputs(tmp_path, Accelerator(cpu=True), Recorder()))
    (batch,) = task.epoch(0, 0)  # all questions
    often = batch.targets.mean(dim=0)
    slow = -sum(p * math.log(p) + (1 - p) * math.log(1 - p) for p in often.tolist())
    step = task.step(task.model, batch, 0)
    assert step.at_collapse() == pytest.approx(slow, rel=1e-5)
    assert float(step.terms["loss"].detach()) > slow  # untrained
    assert "same answers" in task.collapse


@pytest.mark.medium
def test_images_that_the_store_lacks_are_reported(questions: Path, tmp_path: Path) -> None:
    folder = write_tiny_questions(tmp_path / "data")
    with (folder / "metadata.jsonl").open("a") as file:
        file.write('{"file_name": "gone.jpg", "question": "what is it", "answer": "red", "split": "train"}\n')
    watcher = Recorder()
    run_recipe(answering_recipe(folder, phases=[{"epochs": 1}]), tmp_path / "run", watcher=watcher)
    assert any("gone.jpg" in warning for warning in watcher.warnings)


@pytest.mark.medium
def test_refusals(questions: Path, tmp_path: Path) -> None:
    tree = answering_tree(questions)
    cases = [
        ({"answers": {"min_count": 99}}, DataError, " 99 .*min_count"),
        ({"text": {**tree["text"], "aggregator": "mean"}}, RecipeError, "text.aggregator.*mean.*score_attention"),
        ({**question_only(tree), "text": tree["text"]}, RecipeError, "text.aggregator.*tokens"),
        ({"fusion": {"name": "scor_attention"}}, RecipeError, "fusion.*'score_attention'"),
        ({"fusion": {"name": "pooled", "aggregator": "tokens"}}, RecipeError, "fusion.*pooled.*Tokens"),
        ({"data": {"source": ""}}, RecipeError, "data.source"),
    ]
    for change, error, message in cases:
        with pytest.raises(error, match=message) as caught:
            run_recipe(parse_recipe({**tree, **change}), tmp_path / "run")
        assert "\n" not in str(caught.value)


def test_a_limit_draws_training_images_and_keeps_their_questions(questions: Path, tmp_path: Path) -> None:
    tree = answering_tree(questions)
    tree["data"]["limit"] = 2
    asked = open_questions(f"question_folder:{questions}", require_images=False)
    task = open_answering(parse_recipe(tree), RunInputs(tmp_path, Accelerator(cpu=True), Recorder(), None))
    of_images = Counter(question.image_id for question in asked.split("train").questions)
    assert task.data["splits"]["train"] == len(set(task.training.image_of.tolist())) == 2
    assert len(task.training) in {sum(pair) for pair in combinations(of_images.values(), 2)}
    assert len(task._validation) == len(asked.split("validation"))


def test_validation_on_some_images_alone(questions: Path, tmp_path: Path) -> None:
    tree = answering_tree(questions)
    tree["training"]["validation_images"] = 2
    accelerator = Accelerator(cpu=True)
    task = open_answering(parse_recipe(tree), RunInputs(tmp_path, accelerator, Recorder(), None))
    asked = open_questions(f"question_folder:{questions}", require_images=False).split("validation")
    some = asked.about([asked.image_ids[0], asked.image_ids[len(asked.image_ids) // 2]])
    assert len(task._validation) == len(some) < len(asked)
