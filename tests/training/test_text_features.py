"""A frozen text model reads each text of a run once; training and validation read its states from disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from encoders.conftest import SPECIALS
from openvse.datasets import open_corpus, open_questions
from openvse.errors import RecipeError, StoreError
from openvse.evaluation.embed import embed_corpus
from openvse.features.extract import extract_text_features, text_id
from openvse.features.store import FeatureStore
from openvse.model.two_tower import TwoTower
from openvse.pipeline import WorkProgress
from openvse.retrieval.build import build_model
from openvse.retrieval.evaluate import compare_towers, evaluate_towers
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.kind import LoadedRun, Request
from openvse.training.records import Silent
from openvse_papers.vqa.answerer import Answerer
from openvse_papers.vqa.evaluate import compare_answerers, evaluate_answerer
from tests.tiny import WORDS, Recorder, read_metrics, tiny_tree, write_tiny_corpus
from tests.tiny_questions import THINGS, answering_tree, write_tiny_questions

ONE_EPOCH = [{"epochs": 1}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a tiny BERT that knows the words of the tiny data set."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "hidden_size": 16}
    vocabulary = [*SPECIALS, *WORDS]
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, **layers)).save_pretrained(
        folder
    )
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return str(folder)


def recipe_of(tiny: Path, bert: str, text_features: str | None = "auto", **encoder: Any) -> RetrievalRecipe:
    tree = tiny_tree(tiny, phases=ONE_EPOCH)
    options = {"fine_tune": False, "size_augmentation": "none"} | encoder
    tree["text"]["encoder"] = {"name": "transformers_text", "model": bert, **options}
    tree["data"]["text_features"] = text_features
    return parse_recipe(tree)


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in read_metrics(run) if record["kind"] == "step"]


@pytest.fixture(scope="module")
def live_run(tiny: Path, bert: str) -> Path:
    run = tiny / "live"
    run_recipe(recipe_of(tiny, bert, None), run)
    assert not (run / "text_features").exists()
    return run


@pytest.mark.medium
def test_a_run_from_stored_states_is_the_run_that_computes_them(
    tiny: Path, bert: str, live_run: Path, tmp_path: Path
) -> None:
    shown: list[WorkProgress] = []
    result = run_recipe(recipe_of(tiny, bert), tmp_path / "run", on_extraction=shown.append)
    corpus = open_corpus(tiny / "tiny.csv", require_images=False)
    assert [(state.done, state.total, state.unit) for state in shown][-1] == (80, 80, "texts")
    store = FeatureStore(tmp_path / "run" / "text_features")
    assert set(store.ids) == {text_id(caption) for caption in corpus.captions}
    assert losses(tmp_path / "run") == pytest.approx(losses(live_run), rel=2e-3)
    model = load_as(TwoTower, result.best)
    images = FeatureStore(tiny / "features")
    validation = corpus.split("validation")
    live = embed_corpus(model, validation, images).texts.vectors
    stored = embed_corpus(model, validation, images, text_features=store).texts.vectors
    torch.testing.assert_close(stored, live, rtol=0, atol=2e-3)
    assert not torch.equal(stored, live), "the store was not read"


@pytest.mark.medium
def test_states_of_single_precision_are_those_of_the_model(tiny: Path, bert: str, tmp_path: Path) -> None:
    corpus = open_corpus(tiny / "tiny.csv", require_images=False)
    model = build_model(recipe_of(tiny, bert), captions=corpus.captions)
    encoder: Any = model.text.encoder
    extract_text_features(encoder, corpus.captions, tmp_path, dtype="float32")
    images = FeatureStore(tiny / "features")
    live = embed_corpus(model, corpus, images)
    stored = embed_corpus(model, corpus, images, text_features=FeatureStore(tmp_path))
    torch.testing.assert_close(stored.texts.vectors, live.texts.vectors)


@pytest.mark.medium
def test_evaluating_and_comparing_read_stored_states(tiny: Path, bert: str, tmp_path: Path) -> None:
    corpus = open_corpus(tiny / "tiny.csv", require_images=False)
    frozen = build_model(recipe_of(tiny, bert), captions=corpus.captions)
    tuned = build_model(recipe_of(tiny, bert, None, fine_tune=True), captions=corpus.captions)
    words = build_model(parse_recipe(tiny_tree(tiny)), captions=corpus.captions)
    encoder: Any = frozen.text.encoder
    extract_text_features(encoder, corpus.captions, tmp_path / "all" / "texts", dtype="float32")
    extract_text_features(encoder, corpus.captions[:3], tmp_path / "few", dtype="float32")
    asked = Request(str(tiny / "tiny.csv"), "all", (tiny / "features",), resamples=100)
    stored = replace(asked, text_features=tmp_path / "all")
    assert evaluate_towers([frozen], stored).report.metrics == evaluate_towers([frozen], asked).report.metrics
    runs = [LoadedRun("frozen", (frozen,)), LoadedRun("rest", (tuned, words))]
    both = [[run.metrics for run in compare_towers(runs, request).runs] for request in (asked, stored)]
    assert both[0] == both[1]
    lacking = replace(asked, text_features=tmp_path / "few")
    evaluate_towers([tuned, words], lacking)  # neither can read states
    for measure in (lambda: evaluate_towers([frozen], lacking), lambda: compare_towers(runs, lacking)):
        with pytest.raises(StoreError, match=r"lacks \d+ of \d+ texts"):
            measure()


@pytest.mark.medium
def test_runs_with_the_same_frozen_text_model_read_a_sentence_once(
    tiny: Path, bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = open_corpus(tiny / "tiny.csv", require_images=False)
    models = [build_model(recipe_of(tiny, bert), captions=corpus.captions, seed=seed) for seed in range(3)]
    words = build_model(parse_recipe(tiny_tree(tiny)), captions=corpus.captions)
    asked = Request(str(tiny / "tiny.csv"), "all", (tiny / "features",), resamples=100)
    alone = [evaluate_towers([model], asked).report.metrics for model in (*models, words)]
    read: list[int] = []
    for model in models:
        encoder: Any = model.text.encoder
        states = encoder.token_states
        monkeypatch.setattr(
            encoder,
            "token_states",
            lambda inputs, states=states: read.append(len(inputs.values)) or states(inputs),
        )
    runs = [LoadedRun(str(n), (model,)) for n, model in enumerate((*models, words))]
    compared = compare_towers(runs, asked)
    assert [run.metrics for run in compared.runs] == alone
    assert sum(read) == len(set(corpus.captions))


@pytest.mark.medium
def test_a_store_made_before_serves_and_other_ones_are_refused(
    tiny: Path, bert: str, live_run: Path, tmp_path: Path
) -> None:
    encoder: Any = build_model(recipe_of(tiny, bert), captions=["dog"]).text.encoder
    captions = open_corpus(tiny / "tiny.csv", require_images=False).captions
    extract_text_features(encoder, captions, tmp_path / "texts")
    recipe = recipe_of(tiny, bert, str(tmp_path / "texts"))
    workers = recipe.model_copy(update={"data": recipe.data.model_copy(update={"num_workers": 1})})
    run_recipe(workers, tmp_path / "run")
    assert losses(tmp_path / "run") == pytest.approx(losses(live_run), rel=2e-3)
    assert not (tmp_path / "run" / "text_features").exists()
    with pytest.raises(StoreError, match="encoder"):
        run_recipe(recipe_of(tiny, bert, str(tmp_path / "texts"), max_length=9), tmp_path / "length")
    extract_text_features(encoder, captions[:3], tmp_path / "few")
    with pytest.raises(StoreError, match=r"lacks \d+ of 64 texts"):
        run_recipe(recipe_of(tiny, bert, str(tmp_path / "few")), tmp_path / "lacking")


@pytest.mark.medium
def test_auto_runs_the_text_model_where_states_cannot_stand_in(tiny: Path, bert: str, tmp_path: Path) -> None:
    for number, options in enumerate(({"fine_tune": True}, {"size_augmentation": "bert_style"})):
        run_recipe(recipe_of(tiny, bert, **options), tmp_path / str(number))
        assert not (tmp_path / str(number) / "text_features").exists()
        with pytest.raises(RecipeError, match=r"data\.text_features"):
            run_recipe(recipe_of(tiny, bert, "texts", **options), tmp_path / "named")


def test_an_encoder_without_a_text_model_has_nothing_to_store(tiny: Path, tmp_path: Path) -> None:
    tree = tiny_tree(tiny, phases=ONE_EPOCH)
    tree["data"]["text_features"] = "texts"
    with pytest.raises(
        RecipeError,
        match=r"text\.encoder",
    ):
        run_recipe(parse_recipe(tree), tmp_path / "run")


@pytest.mark.medium
def test_a_run_that_drops_states_resumes_to_the_same_numbers(tiny: Path, bert: str, tmp_path: Path) -> None:
    two = {"phases": [{"epochs": 2}]}
    tree = recipe_of(tiny, bert, size_augmentation="drop").to_dict()
    recipe = parse_recipe({**tree, "training": {**tree["training"], **two}})
    run_recipe(recipe, tmp_path / "whole")

    class Killed(Exception):
        pass

    class Killer(Silent):
        def step(self, report: Any) -> None:
            if report.epoch == 2:
                raise Killed

    with pytest.raises(Killed):
        run_recipe(recipe, tmp_path / "cut", watcher=Killer())
    run_recipe(recipe, tmp_path / "cut", resume=True)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


@pytest.mark.medium
def test_questions_are_stored_too(bert: str, tmp_path: Path) -> None:
    folder = write_tiny_questions(tmp_path / "questions")
    runs = {}
    for name, where in (("live", None), ("stored", "auto")):
        tree = answering_tree(folder, phases=ONE_EPOCH)
        options = {"fine_tune": False, "size_augmentation": "none"}
        tree["text"]["encoder"] = {"name": "transformers_text", "model": bert, **options}
        tree["data"]["text_features"] = where
        run_recipe(parse_recipe(tree), tmp_path / name)
        runs[name] = losses(tmp_path / name)
    assert runs["stored"] == pytest.approx(runs["live"], rel=2e-3)
    kept = FeatureStore(tmp_path / "stored" / "text_features")
    assert set(kept.ids) == {text_id(f"what colour is the {thing}") for thing in THINGS}
    asked = Request(f"question_folder:{folder}", "all", (folder / "features",), resamples=100)
    model = load_as(Answerer, tmp_path / "stored" / "best")
    encoder: Any = model.text.encoder
    texts = [question.text for question in open_questions(asked.data, require_images=False).questions]
    extract_text_features(encoder, texts, tmp_path / "texts", dtype="float32")
    extract_text_features(encoder, texts[:1], tmp_path / "few", dtype="float32")
    both = [
        compare_answerers([LoadedRun("run", (model,))], replace(asked, text_features=place)).runs[0].metrics
        for place in (None, tmp_path / "texts")
    ]
    assert both[0] == both[1]
    lacking = replace(asked, text_features=tmp_path / "few")
    for measure in (
        lambda: evaluate_answerer([model], lacking),
        lambda: compare_answerers([LoadedRun("run", (model,))], lacking),
    ):
        with pytest.raises(StoreError, match=r"lacks \d+ of \d+ texts"):
            measure()


@pytest.mark.medium
def test_a_run_from_stored_features_is_told_what_a_linear_map_reaches(
    tiny: Path, bert: str, tmp_path: Path
) -> None:
    watcher = Recorder()
    run_recipe(recipe_of(tiny, bert), tmp_path / "run", watcher=watcher)
    (baseline,) = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "baseline"]
    assert 0 <= baseline["rsum"] <= 600
    assert [note for note in watcher.notes if f"{baseline['rsum']:.1f}" in note and "chance" in note]
    again = Recorder()
    run_recipe(recipe_of(tiny, bert), tmp_path / "run", resume=True, watcher=again)
    assert not [note for note in again.notes if "linear map" in note], "it is known"
    assert [record for record in read_metrics(tmp_path / "run") if record["kind"] == "baseline"] == [baseline]
