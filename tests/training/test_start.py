"""A run from a model: what is taken, what begins anew, before and after, and a run that needs its start no more."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from openvse.datasets import open_corpus
from openvse.errors import RecipeError
from openvse.evaluation.embed import embed_corpus
from openvse.evaluation.report import evaluate_sets
from openvse.features.store import FeatureStore
from openvse.model.start import take_weights
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe, parse_recipe
from openvse.tasks.run import run_recipe
from tests.naming import names, refusal
from tests.tiny import Recorder, Stop, are_same, read_metrics, tiny_recipe, tiny_tree

ONE = [{"epochs": 1}]


@pytest.fixture(scope="module")
def base(corpus: Path) -> Path:
    run_recipe(tiny_recipe(corpus, phases=[{"epochs": 4}]), corpus / "base")
    return corpus / "base"


def short(corpus: Path, start: Path, **model: Any) -> dict[str, Any]:
    """Return a recipe that says nothing of its model but what is given."""
    tree = tiny_tree(corpus, phases=ONE)
    kept = {key: tree[key] for key in ("name", "objective", "data", "optimizer", "training")}
    return {**kept, "start": str(start), **model}


@pytest.mark.medium
def test_a_short_recipe_takes_the_model_of_its_start(corpus: Path, base: Path, tmp_path: Path) -> None:
    recipe, watcher = parse_recipe(short(corpus, base)), Recorder()
    assert recipe.embed_dim == 16 and recipe.text.encoder.name == "bigru"
    still = recipe.model_copy(update={"optimizer": recipe.optimizer.model_copy(update={"learning_rate": 1e-12})})
    run_recipe(still, tmp_path / "run", watcher=watcher)
    before = load_file(base / "best" / "model.safetensors")
    after = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["model"]
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=1e-8)
    fingerprint = load_as(TwoTower, base / "best").fingerprint
    assert watcher.notes[0].startswith("vocabulary") or fingerprint in watcher.notes[0]
    assert {"  image.encoder: taken", "  text.encoder: taken", "  text.aggregator: taken"} <= set(watcher.notes)


@pytest.mark.medium
def test_before_is_the_start_s_own_validation_and_after_is_paired_with_it(
    corpus: Path, base: Path, tmp_path: Path
) -> None:
    watcher = Recorder()
    result = run_recipe(parse_recipe(short(corpus, base)), tmp_path / "run", watcher=watcher)
    records = {record["kind"]: record for record in read_metrics(tmp_path / "run")}
    validation = open_corpus(corpus / "tiny.csv", require_images=False).split("validation")
    reports = {}
    for side, model in (("before", base / "best"), ("after", tmp_path / "run" / "best")):
        loaded = load_as(TwoTower, model)
        embedded = embed_corpus(loaded, validation, FeatureStore(corpus / "features"))
        reports[side] = evaluate_sets(embedded.images, embedded.texts, validation.relevance, loaded.similarity)
    assert records["before"]["rsum"] == pytest.approx(reports["before"].metrics["rsum"])
    assert records["before"]["global_step"] == 0
    if result.progress.best_epoch:  # then best/ is what comes after
        change = reports["after"].metrics["rsum"] - reports["before"].metrics["rsum"]
        assert records["difference"]["rsum"] == pytest.approx(change)
        drawn = reports["after"].replicates["rsum"] - reports["before"].replicates["rsum"]
        low, high = sorted(drawn)[24], sorted(drawn)[-25]
        assert low - 1 <= records["difference"]["rsum_low"] <= records["difference"]["rsum_high"] <= high + 1
    written = json.loads((tmp_path / "run" / "before_after.json").read_text())
    assert written["metrics"]["rsum"]["before"] == records["before"]["rsum"]
    assert written["start"]["fingerprint"] == load_as(TwoTower, base / "best").fingerprint
    assert any("RSUM" in note for note in watcher.notes)
    _, *others = "\n".join(watcher.notes).splitlines()  # the first names the start, whose path may be long
    assert max(map(len, others)) <= 80


@pytest.mark.medium
def test_a_run_that_ends_below_its_start_keeps_it(corpus: Path, base: Path, tmp_path: Path) -> None:
    watcher = Recorder()
    tree = short(corpus, base) | {"optimizer": {"learning_rate": 10.0}}
    result = run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    assert result.progress.best_epoch == 0
    assert load_as(TwoTower, result.best).fingerprint == load_as(TwoTower, base / "best").fingerprint
    assert any("best/ keeps the start" in warning for warning in watcher.warnings)
    assert json.loads((tmp_path / "run" / "before_after.json").read_text())["metrics"]["rsum"]["difference"] < 0


@pytest.mark.medium
def test_a_better_run_replaces_its_start_and_says_where_it_is_from(corpus: Path, tmp_path: Path) -> None:
    run_recipe(tiny_recipe(corpus, phases=ONE), tmp_path / "weak")
    longer = short(corpus, tmp_path / "weak") | {
        "training": {**tiny_tree(corpus)["training"], "phases": [{"epochs": 8}]}
    }
    result = run_recipe(parse_recipe(longer), tmp_path / "run")
    assert result.progress.best_epoch > 0
    start = load_as(TwoTower, result.best).provenance["start"]
    assert start["fingerprint"] == load_as(TwoTower, tmp_path / "weak" / "best").fingerprint
    assert start["changes"]["rsum"]["difference"] > 0 and start["name"] == "weak"


@pytest.mark.medium
def test_other_parts_begin_anew_and_say_why(corpus: Path, base: Path, tmp_path: Path) -> None:
    watcher = Recorder()
    tree = short(corpus, base, text={"aggregator": "mean"}, image={"aggregator": {"size": 4}})
    with pytest.raises(RecipeError, match=r"image\.aggregator\.size"):
        run_recipe(parse_recipe(tree), tmp_path / "bad")
    tree = short(corpus, base, text={"aggregator": "mean"})
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    assert "  text.aggregator: new (mean in place of gpo)" in watcher.notes
    assert "  text.encoder: taken" in watcher.notes
    tree = short(corpus, base, text={"encoder": {"name": "bigru", "word_dim": 6, "min_count": 1}})
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "narrow", watcher=watcher)
    assert "  text.encoder: new (word_dim 6 in place of 8)" in watcher.notes


@pytest.mark.medium
def test_another_width_begins_anew_where_named_and_is_refused_where_inherited(
    corpus: Path, base: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=r"embed_dim.*24.*image\.encoder.*16"):
        parse_recipe(short(corpus, base, embed_dim=24))
    named = {key: tiny_tree(corpus)[key] for key in ("image", "text")}
    watcher = Recorder()
    run_recipe(parse_recipe(short(corpus, base, embed_dim=24, **named)), tmp_path / "run", watcher=watcher)
    assert "  text.encoder.words: taken" in watcher.notes
    assert any(note.startswith("  text.encoder.gru: new (") and "72" in note and "48" in note for note in watcher.notes)
    assert names(refusal(RecipeError, lambda: parse_recipe(short(corpus, base, fusion="start"))), "fusion")


@pytest.mark.medium
def test_nothing_that_agrees_is_refused(corpus: Path, base: Path, tmp_path: Path) -> None:
    encoder = {"name": "precomputed", "feature_dim": 12, "projection": "residual_mlp"}
    words = {"name": "bigru", "word_dim": 6, "min_count": 1}
    sides = {side: {"encoder": each, "aggregator": "max"} for side, each in (("image", encoder), ("text", words))}
    with pytest.raises(RecipeError, match="base"):
        run_recipe(parse_recipe(short(corpus, base, **sides)), tmp_path / "run")


@pytest.mark.medium
def test_a_vocabulary_grows_and_old_words_keep_their_vectors(corpus: Path, base: Path, tmp_path: Path) -> None:
    lines = (corpus / "tiny.csv").read_text().replace("water", "zebra").splitlines()
    (corpus / "other.csv").write_text("\n".join(lines) + "\n")
    tree = short(corpus, base) | {"optimizer": {"learning_rate": 1e-12}}
    tree["data"] = {**tree["data"], "source": str(corpus / "other.csv")}
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    assert "  text.encoder: taken (1 words added to 12)" in watcher.notes
    old = load_as(TwoTower, base / "best").text.encoder
    state = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["model"]
    rows = state["text.encoder.words.weight"]
    assert len(rows) == len(old.vocabulary) + 1
    torch.testing.assert_close(rows[:-1], old.words.weight.detach(), rtol=0, atol=1e-8)


def test_words_are_found_whatever_their_ids(corpus: Path, base: Path) -> None:
    start = load_as(TwoTower, base / "best")
    words = start.text.encoder.vocabulary.words
    captions = [" ".join([word] * (place + 1)) for place, word in enumerate((*words, "zebra"))]
    model = build_model(start.spec, captions=captions, seed=3)
    assert model.text.encoder.vocabulary.words != words
    take_weights(model, start)
    for word in words:
        ours, theirs = (
            each.text.encoder.words.weight[each.text.encoder.vocabulary.id_of(word)] for each in (model, start)
        )
        assert torch.equal(ours, theirs)


@pytest.mark.medium
def test_a_run_resumes_without_its_start(corpus: Path, base: Path, tmp_path: Path) -> None:
    tree = short(corpus, tmp_path / "copy")
    tree["training"] = {**tree["training"], "phases": [{"epochs": 2}], "checkpoint_every_s": 1e-6}
    shutil.copytree(base / "best", tmp_path / "copy")
    recipe = parse_recipe(tree)
    run_recipe(recipe, tmp_path / "whole")
    with pytest.raises(Stop):
        run_recipe(recipe, tmp_path / "parts", watcher=Recorder(3))
    shutil.rmtree(tmp_path / "copy")
    again = parse_recipe(tree, copy=tmp_path / "parts" / "start")
    assert again == recipe
    run_recipe(again, tmp_path / "parts", resume=True)
    assert are_same(tmp_path / "whole", tmp_path / "parts")


def test_the_shipped_recipe_goes_on_with_any_model(corpus: Path, base: Path) -> None:
    recipe = load_recipe("finetune", [f"start={base}", "image.aggregator=mean", "text.encoder.freeze_words=true"])
    assert recipe.image.aggregator.name == "mean" and recipe.text.encoder.options["freeze_words"] is True
    assert recipe.text.encoder.options["word_dim"] == 8 and recipe.similarity.name == "set_max"
    assert names(refusal(RecipeError, load_recipe, "finetune"), "--start", "MODEL")


def test_the_recipe_of_the_documentation(base: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "initialise.md").read_text()
    tree = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    recipe = parse_recipe(tree | {"start": str(base)})
    assert recipe.text.encoder.options["max_words"] == 40 and recipe.text.encoder.options["word_dim"] == 8
    assert recipe.text.aggregator.name == "gpo"
