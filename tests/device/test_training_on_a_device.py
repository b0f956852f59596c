"""Training on an emulated device: every method, both tasks, and how often a step waits for the device."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoders.conftest import bert_checkpoint, vision_checkpoint  # noqa: F401 - fixtures
from openvse.errors import TrainingError
from openvse.features.extract import FeatureStoreWriter
from openvse.features.store import FeatureStore
from openvse.media.images import probe_image
from openvse.retrieval.training import RetrievalTask
from openvse.specs import RunRecipe
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.task import Step
from openvse.training.trainer import Trainer
from tests.device.emulated_device import Waits
from tests.device.small_recipes import OF_METHODS, small
from tests.naming import names, refusal
from tests.tiny import FEATURE_DIM, Recorder, Stop, read_metrics, tiny_recipe, tiny_tree, write_tiny_corpus
from tests.tiny_questions import answering_tree, write_tiny_questions

QUICK = "vse_infinity/coco_regions_bigru"  # stands for all of them in `make check`


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"), train=8, validation=4)


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> Path:
    return write_tiny_questions(tmp_path_factory.mktemp("questions"))


@pytest.fixture
def counted(waits: Waits, monkeypatch) -> Waits:
    """Count what waits for the device in epochs of training, and not in validation."""
    plain = Trainer._train_epoch

    def epoch(trainer: Trainer, log: Any) -> None:
        with waits.counted():
            plain(trainer, log)

    monkeypatch.setattr(Trainer, "_train_epoch", epoch)
    return waits


def losses_of(recipe: RunRecipe, folder: Path, **how: Any) -> list[float]:
    """Train, and return the mean loss of each epoch."""
    watcher = Recorder()
    run_recipe(recipe, folder, watcher=watcher, **how)
    return [report.loss for report in watcher.epochs]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.medium) for name in OF_METHODS]
)
def test_a_method_waits_at_lines_of_the_log_alone(
    name: str,
    corpus: Path,
    bert_checkpoint: str,  # noqa: F811
    tmp_path: Path,
    counted: Waits,
) -> None:
    """What a step computes is that of the CPU, and the device is asked once between two lines of the log."""
    there = losses_of(small(name, corpus, bert_checkpoint, "cuda"), tmp_path / "cuda")
    lines, steps = len(there), sum(record["kind"] == "train" for record in read_metrics(tmp_path / "cuda"))
    assert lines == steps  # no line but at the end of an epoch
    # The pairs without a gradient are known only after the backward pass of a fusion, and skipping them saves more.
    allowed = {key: count for key, count in counted.counts.items() if key.startswith("nonzero at fusion/base.py")}
    assert counted.counts.total() - sum(allowed.values()) <= lines, counted.counts
    assert bool(allowed) is (name.startswith("score_attention"))
    here = losses_of(small(name, corpus, bert_checkpoint, "cpu"), tmp_path / "cpu")
    assert there == pytest.approx(here, rel=1e-3)
    before, after = (torch.load(tmp_path / run / "last.pt")["model"] for run in ("cpu", "cuda"))
    moved = max((before[name] - after[name]).abs().max() for name in before if before[name].is_floating_point())
    assert moved < 0.02


@pytest.mark.medium
@pytest.mark.parametrize(("method", "most"), [(0, 145), (1, 194), (2, 224), (3, 202)])
def test_a_step_starts_few_operators(method: int, most: int, bert_checkpoint: str, tmp_path: Path, monkeypatch) -> None:  # noqa: F811
    """The counts are those outside recurrences and text models, which have kernels of their own."""
    monkeypatch.syspath_prepend("benchmarks")
    operators = importlib.import_module("operators")
    corpus = write_tiny_corpus(tmp_path / "tiny", train=12, validation=4)
    step = operators.count_step(operators.METHODS[method], corpus, bert_checkpoint, tmp_path / "run")
    assert step.outside <= most and step.files[operators.OWN] <= 20, step.files


@pytest.mark.medium
def test_a_batch_crosses_as_it_is_stored(
    corpus: Path,
    vision_checkpoint: Callable[[str], str],  # noqa: F811
    tmp_path: Path,
    counted: Waits,
) -> None:
    """Features of float16 take two bytes a number, and pixels one, of four steps with four images at most."""
    store, sent = FeatureStore(corpus / "features"), dict[str, int]()
    with FeatureStoreWriter(tmp_path / "half", fingerprint="tiny", dim=FEATURE_DIM, dtype="float16") as writer:
        for number, item in enumerate(store.ids):
            writer.add(item, store.gather(np.array([number])).values[0])
            probe_image(number, (60, 45)).save(corpus / item)
    for kind in ("single", "half", "pixels"):
        tree = tiny_tree(corpus, batch_size=4, phases=[{"epochs": 1}], device="cuda", log_every=100)
        if kind == "half":
            tree["data"]["features"] = str(tmp_path / "half")
        elif kind == "pixels":
            del tree["data"]["features"]
            seen = {"name": "transformers_vision", "model": vision_checkpoint("vit"), "projection": "linear"}
            tree["image"]["encoder"] = seen
        run_recipe(parse_recipe(tree), tmp_path / kind)
        sent[kind] = sum(count for place, count in counted.sent.items() if "types.py" in place)
        counted.sent.clear()
    images = (sent["single"] - sent["half"]) // (4 * FEATURE_DIM * 2)
    assert 12 <= images <= 16
    pixels = images * 3 * 32 * 32
    assert pixels <= sent["pixels"] < 1.5 * pixels


@pytest.mark.medium
def test_answering_waits_at_lines_of_the_log_alone(questions: Path, tmp_path: Path, counted: Waits) -> None:
    found = {}
    for device in ("cuda", "cpu"):
        tree = answering_tree(questions, device=device, log_every=100)
        found[device] = losses_of(parse_recipe(tree), tmp_path / device)
    assert counted.counts.total() <= len(found["cuda"]) == 3, counted.counts
    assert found["cuda"] == pytest.approx(found["cpu"], rel=1e-4)


@pytest.mark.medium
def test_clipping_the_mean_of_weights_and_a_scaler_wait_for_nothing(
    corpus: Path, tmp_path: Path, counted: Waits
) -> None:
    more = {"clip_norm": 1.0, "average": {"decay": 0.9}, "precision": "fp16", "log_every": 2}
    recipe = tiny_recipe(corpus, device="cuda", batch_size=4, phases=[{"epochs": 1}], **more)
    watcher = Recorder()
    run_recipe(recipe, tmp_path / "run", watcher=watcher)
    assert len(watcher.steps) == 2  # four steps, every other with a line
    assert counted.counts.total() == 2, counted.counts
    copies = [key for key in counted.copies if key.startswith("copy_ at training/trainer")]
    assert not copies, copies  # weights and their mean stay where they are


@pytest.mark.medium
def test_a_run_on_a_device_resumes_to_the_same_numbers(corpus: Path, tmp_path: Path, waits: Waits) -> None:
    recipe = tiny_recipe(corpus, device="cuda", batch_size=4, phases=[{"epochs": 2}], checkpoint_every_s=1e-6)
    run_recipe(recipe, tmp_path / "whole")
    refusal(Stop, run_recipe, recipe, tmp_path / "cut", watcher=Recorder(stop=6))
    run_recipe(recipe, tmp_path / "cut", resume=True)
    whole, cut = read_metrics(tmp_path / "whole"), read_metrics(tmp_path / "cut")
    assert whole == cut
    assert len([record for record in cut if record["kind"] == "train"]) == 8


@pytest.mark.medium
def test_a_loss_that_is_not_finite_names_its_step_and_leaves_the_checkpoint(
    corpus: Path, tmp_path: Path, waits: Waits, monkeypatch
) -> None:
    """The loss of the third step is read with the line after the fourth; what a checkpoint holds is finite."""
    recipe = tiny_recipe(corpus, device="cuda", batch_size=4, phases=[{"epochs": 1}], log_every=4)
    plain, steps = RetrievalTask.step, []

    def step(*given: Any) -> Step:
        steps.append(taken := plain(*given))
        if len(steps) == 3:
            taken.terms["loss"] = taken.terms["loss"] * torch.nan
        return taken

    monkeypatch.setattr(RetrievalTask, "step", step)
    assert names(refusal(TrainingError, run_recipe, recipe, tmp_path / "run"), "step 3")
    assert len(steps) == 4
    state = torch.load(tmp_path / "run" / "last.pt", weights_only=False)
    assert all(weight.isfinite().all() for weight in state["model"].values())


@pytest.mark.medium
def test_a_closed_form_is_solved_on_a_device(corpus: Path, tmp_path: Path, waits: Waits) -> None:
    """Its start ranks as that of a CPU does."""
    begun = {}
    for device in ("cpu", "cuda"):
        tree = tiny_tree(corpus, phases=[{"epochs": 1}], device=device) | {"start": {"name": "closed_form"}}
        tree["image"]["encoder"]["projection"] = "none"
        for side in ("image", "text"):
            tree[side]["aggregator"] = "pooled_linear"
        result = run_recipe(parse_recipe(tree), tmp_path / device)
        begun[device] = result.progress.best_score
    assert begun["cuda"] == begun["cpu"]
