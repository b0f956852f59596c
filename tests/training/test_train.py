"""Whole runs on a tiny data set: learning, logging, resuming, and refusing."""

import json
import os
import re
import shlex
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.errors import DataError, ModelError, RecipeError, StoreError, TrainingError
from openvse.evaluation.embed import embed_corpus
from openvse.evaluation.report import evaluate_sets
from openvse.features.store import FeatureStore
from openvse.features.writer import FeatureStoreWriter
from openvse.files import locked
from openvse.model.two_tower import TwoTower
from openvse.retrieval.training import open_data
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe, parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.optimizer import Plateau
from openvse.training.records import Silent, StepReport
from tests.forking import forked
from tests.naming import names, refusal
from tests.tiny import Recorder, Stop, are_same, read_metrics, tiny_recipe, tiny_tree, write_tiny_corpus


@pytest.mark.medium
def test_a_run_leaves_everything_behind(corpus: Path, tmp_path: Path) -> None:
    watcher = Recorder()
    result = run_recipe(tiny_recipe(corpus), tmp_path / "run", watcher=watcher)
    run = tmp_path / "run"
    assert result.best == run / "best" and result.progress.epoch == 3
    left = {"recipe.yaml", "last.pt", "metrics.jsonl", "tensorboard", "best"}
    assert left <= {path.name for path in run.iterdir()}
    assert any((run / "tensorboard").iterdir())
    assert parse_recipe(yaml.safe_load((run / "recipe.yaml").read_text())) == tiny_recipe(corpus)
    assert [report.epoch for report in watcher.epochs] == [1, 2, 3]
    assert len(watcher.steps) == 3 * 4  # 64 pairs in batches of 16
    best = max(watcher.epochs, key=lambda report: report.metrics["rsum"])
    assert result.progress.best_score == best.metrics["rsum"]
    # The model folder alone gives the validation result again.
    model = load_as(TwoTower, result.best)
    validation = open_corpus(corpus / "tiny.csv", require_images=False).split("validation")
    embedded = embed_corpus(model, validation, FeatureStore(corpus / "features"))
    report = evaluate_sets(embedded.images, embedded.texts, embedded.corpus.relevance, model.similarity, resamples=0)
    assert report.metrics["rsum"] == pytest.approx(best.metrics["rsum"])


@pytest.mark.slow
def test_it_learns_held_out_pairs(corpus: Path, tmp_path: Path) -> None:
    watcher = Recorder()
    run_recipe(tiny_recipe(corpus, phases=[{"epochs": 30}]), tmp_path / "run", watcher=watcher)
    assert watcher.epochs[-1].loss < 0.75 * watcher.epochs[0].loss
    # Chance is about 290 among 8 images.
    assert max(report.metrics["rsum"] for report in watcher.epochs) > 450


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "best" / "model.safetensors")


@pytest.mark.medium
def test_validation_on_some_images_alone(corpus: Path, tmp_path: Path) -> None:
    run_recipe(tiny_recipe(corpus, validation_images=3), tmp_path / "run")
    records = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "validation"]
    validation = open_corpus(corpus / "tiny.csv", require_images=False).split("validation")
    some = validation.select(np.array([0, 2, 5]))  # of eight
    model = load_as(TwoTower, tmp_path / "run" / "best")
    embedded = embed_corpus(model, some, FeatureStore(corpus / "features"))
    report = evaluate_sets(embedded.images, embedded.texts, some.relevance, model.similarity, resamples=0).metrics
    assert max(record["rsum"] for record in records) == pytest.approx(report["rsum"])
    assert report["t2i_meanr"] <= 3


def limited(corpus: Path, limit: int | None, seed: int = 0) -> Corpus:
    tree = tiny_tree(corpus) | {"seed": seed}
    tree["data"]["limit"] = limit
    return open_data(parse_recipe(tree))


def test_a_limit_draws_training_images_with_the_seed(corpus: Path) -> None:
    whole = limited(corpus, None)
    parts = {limit: limited(corpus, limit) for limit in (1, 5, 9, 10**6)}
    trained = {limit: part.split("train").image_ids for limit, part in parts.items()}
    assert [len(ids) for ids in trained.values()] == [1, 5, 9, len(whole.split("train"))]
    assert set(trained[1]) < set(trained[5]) < set(trained[9]) and trained[9] != trained[10**6][:9]
    assert limited(corpus, 5).image_ids == parts[5].image_ids != limited(corpus, 5, seed=1).image_ids
    for part in parts.values():
        assert part.split("validation").image_ids == whole.split("validation").image_ids
        assert set(part.captions) <= set(whole.captions)
    assert parts[10**6].image_ids == whole.image_ids


def test_a_limit_keeps_the_splits_of_data_without_any(corpus: Path, tmp_path: Path) -> None:
    tree, path = tiny_tree(corpus), tmp_path / "unsplit.csv"
    lines = (corpus / "tiny.csv").read_text().splitlines()
    path.write_text("".join(f"{line.rpartition(',')[0]}\n" for line in lines))
    tree["data"] |= {"source": str(path), "limit": 3}
    whole = open_corpus(path, require_images=False)
    part = open_data(parse_recipe(tree))
    assert len(part.split("train")) == 3
    assert part.split("test").image_ids == whole.split("test").image_ids


@pytest.mark.medium
def test_a_run_with_a_limit_resumes_and_says_how_many(corpus: Path, tmp_path: Path) -> None:
    tree = tiny_tree(corpus)
    tree["data"]["limit"] = 9
    recipe = parse_recipe(tree)
    run_recipe(recipe, tmp_path / "whole")
    with pytest.raises(Stop):
        run_recipe(recipe, tmp_path / "parts", watcher=Recorder(2), resume=True)
    run_recipe(recipe, tmp_path / "parts", resume=True)
    assert are_same(tmp_path / "whole", tmp_path / "parts")
    provenance = json.loads((tmp_path / "parts" / "best" / "config.json").read_text())["provenance"]
    assert provenance["data"]["splits"]["train"] == 9
    tree["data"]["limit"] = 8
    with pytest.raises(TrainingError, match="data"):
        run_recipe(parse_recipe(tree), tmp_path / "parts", resume=True)


SHORT = [{"epochs": 1, "objective": {"ranking.miner": "all"}}, {"epochs": 1, "warmup_epochs": 2}]
LONGER = [SHORT[0], {"epochs": 3, "warmup_epochs": 2}]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("phases", "beside"),
    [
        (LONGER, {}),
        (
            [*SHORT, {"epochs": 2, "learning_rate": 1e-3}],
            {"plateau": {"patience": 0, "factor": 0.5}, "average": {"decay": 0.9}},
        ),
    ],
)
def test_a_finished_run_with_more_epochs_equals_one_that_had_them(
    corpus: Path, tmp_path: Path, phases: list[dict[str, Any]], beside: dict[str, Any]
) -> None:
    longer = tiny_recipe(corpus, phases=phases, **beside)
    run_recipe(longer, tmp_path / "whole")
    run_recipe(tiny_recipe(corpus, phases=SHORT, **beside), tmp_path / "parts")
    with pytest.raises(Stop):
        run_recipe(longer, tmp_path / "parts", resume=True, watcher=Recorder(10))
    run_recipe(longer, tmp_path / "parts", resume=True)
    assert are_same(tmp_path / "whole", tmp_path / "parts")
    recipes = {(tmp_path / run / "recipe.yaml").read_text() for run in ("whole", "parts")}
    assert len(recipes) == 1
    whole, parts = (torch.load(tmp_path / run / "last.pt") for run in ("whole", "parts"))
    torch.testing.assert_close(parts["optimizer"], whole["optimizer"], rtol=0, atol=0)


@pytest.mark.medium
def test_epochs_that_are_done_keep_their_phases(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_recipe(tiny_recipe(corpus, phases=SHORT), run)
    before = (run / "last.pt").read_bytes(), (run / "recipe.yaml").read_bytes()
    for phases in (SHORT[:1], [{"epochs": 4}], [SHORT[0], {"epochs": 3}], [SHORT[0], *SHORT]):
        with pytest.raises(TrainingError, match=r"epoch 2.*training\.phases.*--start"):
            run_recipe(tiny_recipe(corpus, phases=phases), run, resume=True)
    assert ((run / "last.pt").read_bytes(), (run / "recipe.yaml").read_bytes()) == before
    watcher = Recorder()
    run_recipe(tiny_recipe(corpus, phases=LONGER), run, resume=True, watcher=watcher)
    assert names(" ".join(watcher.notes), 4, 2, 3, "phase 2 of 2", 0.003125)


@pytest.mark.medium
def test_a_loss_that_learns_goes_on_in_its_last_phase(corpus: Path, tmp_path: Path) -> None:
    tree = tiny_tree(corpus, phases=[{"epochs": 1}])
    tree["objective"]["ranking"]["criterion"] = {"name": "info_nce", "learned": True}
    run_recipe(parse_recipe(tree), tmp_path)
    tree["training"]["phases"] = [{"epochs": 1}, {"epochs": 1}]
    with pytest.raises(TrainingError, match=r"training\.phases"):
        run_recipe(parse_recipe(tree), tmp_path, resume=True)
    tree["training"]["phases"] = [{"epochs": 2}]
    assert run_recipe(parse_recipe(tree), tmp_path, resume=True).progress.epoch == 2


@pytest.mark.medium
def test_a_run_without_its_state_names_the_command_that_goes_on(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    run_recipe(tiny_recipe(corpus, phases=SHORT), run)
    (run / "last.pt").unlink()
    with pytest.raises(TrainingError, match="--start") as caught:
        run_recipe(tiny_recipe(corpus, phases=LONGER), run, resume=True)
    said = str(caught.value)
    command = shlex.split(said[said.index("openvse train ") :])
    assert command[:2] == ["openvse", "train"]
    assert command[-4:] == ["--start", str(run), "--out", f"{run}-more"]
    recipe = load_recipe(command[2], [command[3], f"start={run}"])
    assert [phase.epochs for phase in recipe.training.phases] == [1, 3]
    assert run_recipe(recipe, Path(command[-1])).progress.epoch == 4


@pytest.mark.medium
def test_a_run_that_is_stopped_again_and_again_resumes_to_the_same_bits(corpus: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(corpus, checkpoint_every_s=1e-6)
    run_recipe(recipe, tmp_path / "whole")
    for stop in (2, 4, 7, 11):  # within an epoch, at its last step, in a later phase
        with pytest.raises(Stop):
            run_recipe(recipe, tmp_path / "parts", watcher=Recorder(stop), resume=True)
        assert (tmp_path / "parts" / "last.pt").exists()
    run_recipe(recipe, tmp_path / "parts", resume=True)
    assert are_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.medium
def test_a_plateau_is_part_of_the_checkpoint(corpus: Path, tmp_path: Path) -> None:
    # Among 8 images every text finds its own within 10: from the second epoch on this metric stagnates.
    plateau = {"patience": 0, "metric": "t2i_r10"}
    recipe = tiny_recipe(corpus, checkpoint_every_s=1e-6, plateau=plateau, phases=[{"epochs": 4}])
    whole = run_recipe(recipe, tmp_path / "whole")
    for stop in (4, 9, 12):  # before the first halving, within a halved epoch, at its last step
        with pytest.raises(Stop):
            run_recipe(recipe, tmp_path / "parts", watcher=Recorder(stop), resume=True)
    resumed = run_recipe(recipe, tmp_path / "parts", resume=True)
    assert are_same(tmp_path / "whole", tmp_path / "parts")
    records = read_metrics(tmp_path / "parts")
    rates = [record["learning_rate"] for record in records if record["kind"] == "train"]
    assert rates == [rate for rate in (5e-3, 5e-3, 2.5e-3, 1.25e-3) for _ in range(4)]
    assert resumed.progress.plateau == whole.progress.plateau == Plateau(100.0, 0, 0.125)


class Slow(Silent):
    """Leaves time for a kill."""

    def step(self, report: StepReport) -> None:
        time.sleep(0.02)


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_same_bits(corpus: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(corpus, checkpoint_every_s=1e-6, threads=1)
    killed = tmp_path / "killed"
    process = forked(partial(run_recipe, recipe, killed, watcher=Slow()))
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (killed / "last.pt").exists():
        assert process.is_alive(), "the run ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    run_recipe(recipe, killed, resume=True)
    run_recipe(recipe, tmp_path / "whole")
    assert are_same(killed, tmp_path / "whole")


@pytest.mark.medium
def test_a_finished_run_resumes_to_nothing_more(corpus: Path, tmp_path: Path) -> None:
    first = run_recipe(tiny_recipe(corpus), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert run_recipe(tiny_recipe(corpus), tmp_path / "run", resume=True).progress == first.progress
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


@pytest.mark.medium
def test_the_seed_decides_the_run(corpus: Path, tmp_path: Path) -> None:
    tree = tiny_tree(corpus)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run_recipe(parse_recipe({**tree, "seed": seed}), tmp_path / name)
    assert are_same(tmp_path / "a", tmp_path / "b")
    assert read_metrics(tmp_path / "a") != read_metrics(tmp_path / "c")


@pytest.mark.medium
def test_bf16_and_worker_processes_train(corpus: Path, tmp_path: Path) -> None:
    tree = tiny_tree(corpus, precision="bf16")
    tree["data"]["num_workers"] = 1
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    assert watcher.epochs[-1].loss < watcher.epochs[0].loss
    assert all(weight.dtype == torch.float32 for weight in weights_of(tmp_path / "run").values())


@pytest.mark.medium
def test_frozen_prefixes_and_multipliers(corpus: Path, tmp_path: Path) -> None:
    tree = tiny_tree(corpus, phases=[{"epochs": 1, "frozen": ["text.encoder.words"]}])
    run_recipe(parse_recipe(tree), tmp_path / "frozen")
    tree["training"]["phases"][0]["frozen"] = ["text.encoder"]
    run_recipe(parse_recipe(tree), tmp_path / "more")
    free, frozen = weights_of(tmp_path / "frozen"), weights_of(tmp_path / "more")
    assert torch.equal(free["text.encoder.words.weight"], frozen["text.encoder.words.weight"])
    assert not torch.equal(free["text.encoder.gru.weight_hh_l0"], frozen["text.encoder.gru.weight_hh_l0"])


@pytest.mark.medium
def test_a_folder_of_stores_stands_for_the_one_that_fits(corpus: Path, tmp_path: Path) -> None:
    """By its width; or by its maker, where another has the same width."""
    phases = [{"epochs": 1}]
    run_recipe(tiny_recipe(corpus, phases=phases), tmp_path / "one")
    stores = tmp_path / "stores"
    shutil.copytree(corpus / "features", stores / "tiny")
    with FeatureStoreWriter(stores / "other", fingerprint="butd", dim=12):
        pass
    tree = tiny_tree(corpus, phases=phases)
    tree["data"]["features"] = str(stores)
    with pytest.raises(StoreError, match="image.encoder.made_by"):
        run_recipe(parse_recipe(tree), tmp_path / "doubt")
    tree["image"]["encoder"]["made_by"] = "tiny"
    run_recipe(parse_recipe(tree), tmp_path / "chosen")
    assert weights_of(tmp_path / "one").keys() and are_same(tmp_path / "one", tmp_path / "chosen")


@pytest.mark.medium
def test_an_image_without_features_is_skipped_with_a_warning(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_tiny_corpus(folder)
    with (folder / "tiny.csv").open("a") as file:
        file.write("unreadable.jpg,red dog,train\n")
    watcher = Recorder()
    run_recipe(tiny_recipe(folder), tmp_path / "run", watcher=watcher)
    assert any("unreadable.jpg" in warning for warning in watcher.warnings)


@pytest.mark.medium
def test_nan_stops_and_names_the_batch(corpus: Path, tmp_path: Path) -> None:
    tree = tiny_tree(corpus)
    tree["optimizer"]["learning_rate"] = 1e30
    tree["training"]["clip_norm"] = None
    with pytest.raises(TrainingError, match=r"(nan|inf).* \d+ .* \d+"):
        run_recipe(parse_recipe(tree), tmp_path / "run")


@pytest.mark.slow
def test_collapse_is_diagnosed(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openvse.training.records.EVERY", 1)
    monkeypatch.setattr("openvse.training.records.WINDOW", 20)
    tree = tiny_tree(corpus, phases=[{"epochs": 6}])
    tree["optimizer"]["learning_rate"] = 1e-12
    # Scores do not matter beside it.
    tree["objective"]["ranking"]["criterion"] = {"name": "hinge", "margin": 50.0}
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    assert any("1600" in warning for warning in watcher.warnings)


class TestRefusals:
    def test_a_precision_that_the_device_lacks(self, corpus: Path, tmp_path: Path) -> None:
        assert names(refusal(TrainingError, lambda: run_recipe(tiny_recipe(corpus, precision="fp16"), tmp_path)), "GPU")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
    def test_a_device_that_is_not_there(self, corpus: Path, tmp_path: Path) -> None:
        with pytest.raises(TrainingError, match="training.device"):
            run_recipe(tiny_recipe(corpus, device="cuda"), tmp_path)

    def test_another_run_in_the_folder(self, corpus: Path, tmp_path: Path) -> None:
        recipe = tiny_recipe(corpus, phases=[{"epochs": 1}])
        run_recipe(recipe, tmp_path)
        before = (tmp_path / "last.pt").read_bytes()
        refusal(TrainingError, run_recipe, recipe, tmp_path)
        with pytest.raises(TrainingError, match="training"):
            run_recipe(tiny_recipe(corpus, phases=[{"epochs": 1}], clip_norm=1.0), tmp_path, resume=True)
        assert (tmp_path / "last.pt").read_bytes() == before

    def test_a_run_that_another_process_writes(self, corpus: Path, tmp_path: Path) -> None:
        recipe = tiny_recipe(corpus, phases=[{"epochs": 1}])
        with locked(tmp_path, "run", TrainingError), pytest.raises(TrainingError, match=f"{os.getpid()}"):
            run_recipe(recipe, tmp_path)
        assert not (tmp_path / "recipe.yaml").exists()
        run_recipe(recipe, tmp_path)

    def test_a_half_written_checkpoint(self, corpus: Path, tmp_path: Path) -> None:
        recipe = tiny_recipe(corpus, phases=[{"epochs": 1}])
        run_recipe(recipe, tmp_path)
        best = (tmp_path / "best" / "model.safetensors").read_bytes()
        whole = (tmp_path / "last.pt").read_bytes()
        (tmp_path / "last.pt").write_bytes(whole[: len(whole) // 2])
        assert names(refusal(TrainingError, run_recipe, recipe, tmp_path, resume=True), "last.pt", "--overwrite")
        assert (tmp_path / "best" / "model.safetensors").read_bytes() == best

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"data": {"source": ""}}, RecipeError, "data.source"),
            ({"data": {"source": "gone.csv"}}, DataError, "gone.csv"),
            ({"data": {"features": "gone"}}, StoreError, "gone"),
            ({"optimizer": {"multipliers": {"image.encodr": 0.1}}}, RecipeError, "image.encodr"),
            ({"image": {"encoder": {"feature_dim": 5}}}, ModelError, "12.*5"),
        ],
    )
    def test_a_recipe_that_does_not_fit(
        self, corpus: Path, tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        def merge(tree: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
            return {
                **tree,
                **{k: merge(tree[k], v) if isinstance(v, dict) and k in tree else v for k, v in over.items()},
            }

        with pytest.raises(error, match=message) as caught:
            run_recipe(parse_recipe(merge(tiny_tree(corpus), change)), tmp_path / "run")
        assert "\n" not in str(caught.value)


def vocabulary_notes(watcher: Recorder) -> list[str]:
    return [note for note in watcher.notes if note.startswith("vocabulary")]


@pytest.mark.medium
def test_the_words_that_the_vocabulary_leaves_out_are_counted_once(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    lines = (corpus / "tiny.csv").read_text().splitlines()
    lines[1] = "000.jpg,an unheard-of marmoset,train"
    (corpus / "tiny.csv").write_text("\n".join(lines) + "\n")
    tree = tiny_tree(corpus)
    tree["text"]["encoder"]["min_count"] = 2
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    (said,) = vocabulary_notes(watcher)
    assert re.search(r"12 .*16 .*min_count.* 2.* 1\.6 %", said)
    (record,) = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "vocabulary"]
    counts = ("num_words", "num_known", "num_tokens", "num_unknown")
    assert [record[name] for name in counts] == [16, 12, 256, 4]
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher, resume=True)
    assert vocabulary_notes(watcher) == [said, said]
    assert [record["kind"] for record in read_metrics(tmp_path / "run")].count("vocabulary") == 1
