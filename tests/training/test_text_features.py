"""A frozen text model reads each text of a run once; training and validation read its states from disk.

A batch that is embedded in chunks has the gradient of the whole batch, and keeps the activations of one chunk.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from openvse.datasets import open_corpus, open_questions
from openvse.errors import RecipeError, StoreError
from openvse.evaluation.embed import embed_corpus
from openvse.features.extract import extract_text_features, text_id
from openvse.features.store import FeatureStore
from openvse.model.two_tower import TwoTower
from openvse.pipeline import WorkProgress
from openvse.retrieval.build import build_model, build_objective
from openvse.retrieval.evaluate import compare_towers, evaluate_towers
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.kind import LoadedRun, Request
from openvse.types import Inputs, ScoredBatch
from openvse_papers.vqa.answerer import Answerer
from openvse_papers.vqa.evaluate import compare_answerers, evaluate_answerer
from tests.tiny import Recorder, Stop, read_metrics, tiny_tree, write_tiny_corpus
from tests.tiny_questions import THINGS, answering_tree, write_tiny_questions

ONE_EPOCH = [{"epochs": 1}]


def recipe_of(corpus: Path, bert: str, text_features: str | None = "auto", **encoder: Any) -> RetrievalRecipe:
    tree = tiny_tree(corpus, phases=ONE_EPOCH)
    options = {"fine_tune": False, "size_augmentation": "none"} | encoder
    tree["text"]["encoder"] = {"name": "transformers_text", "model": bert, **options}
    tree["data"]["text_features"] = text_features
    return parse_recipe(tree)


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in read_metrics(run) if record["kind"] == "train"]


@pytest.fixture(scope="module")
def live_run(corpus: Path, bert: str) -> Path:
    run = corpus / "live"
    run_recipe(recipe_of(corpus, bert, None), run)
    assert not (run / "text_features").exists()
    return run


@pytest.mark.medium
def test_a_run_from_stored_states_is_the_run_that_computes_them(
    corpus: Path, bert: str, live_run: Path, tmp_path: Path
) -> None:
    shown: list[WorkProgress] = []
    result = run_recipe(recipe_of(corpus, bert), tmp_path / "run", on_extraction=shown.append)
    pairs = open_corpus(corpus / "tiny.csv", require_images=False)
    assert [(state.done, state.total, state.unit) for state in shown][-1] == (80, 80, "texts")
    store = FeatureStore(tmp_path / "run" / "text_features")
    assert set(store.ids) == {text_id(caption) for caption in pairs.captions}
    assert losses(tmp_path / "run") == pytest.approx(losses(live_run), rel=2e-3)
    model = load_as(TwoTower, result.best)
    images = FeatureStore(corpus / "features")
    validation = pairs.split("validation")
    live = embed_corpus(model, validation, images).texts.vectors
    stored = embed_corpus(model, validation, images, text_features=store).texts.vectors
    torch.testing.assert_close(stored, live, rtol=0, atol=2e-3)
    assert not torch.equal(stored, live), "the store was not read"


@pytest.mark.medium
def test_states_of_single_precision_are_those_of_the_model(corpus: Path, bert: str, tmp_path: Path) -> None:
    pairs = open_corpus(corpus / "tiny.csv", require_images=False)
    model = build_model(recipe_of(corpus, bert), captions=pairs.captions)
    encoder: Any = model.text.encoder
    extract_text_features(encoder, pairs.captions, tmp_path, dtype="float32")
    images = FeatureStore(corpus / "features")
    live = embed_corpus(model, pairs, images)
    stored = embed_corpus(model, pairs, images, text_features=FeatureStore(tmp_path))
    torch.testing.assert_close(stored.texts.vectors, live.texts.vectors)


@pytest.mark.medium
def test_evaluating_and_comparing_read_stored_states(corpus: Path, bert: str, tmp_path: Path) -> None:
    pairs = open_corpus(corpus / "tiny.csv", require_images=False)
    frozen = build_model(recipe_of(corpus, bert), captions=pairs.captions)
    tuned = build_model(recipe_of(corpus, bert, None, fine_tune=True), captions=pairs.captions)
    words = build_model(parse_recipe(tiny_tree(corpus)), captions=pairs.captions)
    encoder: Any = frozen.text.encoder
    extract_text_features(encoder, pairs.captions, tmp_path / "all" / "texts", dtype="float32")
    extract_text_features(encoder, pairs.captions[:3], tmp_path / "few", dtype="float32")
    asked = Request(str(corpus / "tiny.csv"), "all", (corpus / "features",), resamples=100)
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
    corpus: Path, bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = open_corpus(corpus / "tiny.csv", require_images=False)
    models = [build_model(recipe_of(corpus, bert), captions=pairs.captions, seed=seed) for seed in range(3)]
    words = build_model(parse_recipe(tiny_tree(corpus)), captions=pairs.captions)
    asked = Request(str(corpus / "tiny.csv"), "all", (corpus / "features",), resamples=100)
    alone = [evaluate_towers([model], asked).report.metrics for model in (*models, words)]
    read: list[int] = []
    for model in models:
        encoder: Any = model.text.encoder
        states = encoder.token_states
        monkeypatch.setattr(
            encoder, "token_states", lambda inputs, states=states: read.append(len(inputs.values)) or states(inputs)
        )
    runs = [LoadedRun(str(n), (model,)) for n, model in enumerate((*models, words))]
    compared = compare_towers(runs, asked)
    assert [run.metrics for run in compared.runs] == alone
    assert sum(read) == len(set(pairs.captions))


@pytest.mark.medium
def test_a_store_made_before_serves_and_other_ones_are_refused(
    corpus: Path, bert: str, live_run: Path, tmp_path: Path
) -> None:
    encoder: Any = build_model(recipe_of(corpus, bert), captions=["dog"]).text.encoder
    captions = open_corpus(corpus / "tiny.csv", require_images=False).captions
    extract_text_features(encoder, captions, tmp_path / "texts")
    recipe = recipe_of(corpus, bert, str(tmp_path / "texts"))
    workers = recipe.model_copy(update={"data": recipe.data.model_copy(update={"num_workers": 1})})
    run_recipe(workers, tmp_path / "run")
    assert losses(tmp_path / "run") == pytest.approx(losses(live_run), rel=2e-3)
    assert not (tmp_path / "run" / "text_features").exists()
    with pytest.raises(StoreError, match="encoder"):
        run_recipe(recipe_of(corpus, bert, str(tmp_path / "texts"), max_length=9), tmp_path / "length")
    extract_text_features(encoder, captions[:3], tmp_path / "few")
    with pytest.raises(StoreError, match=r"lacks \d+ of 64 texts"):
        run_recipe(recipe_of(corpus, bert, str(tmp_path / "few")), tmp_path / "lacking")


@pytest.mark.medium
def test_auto_runs_the_text_model_where_states_cannot_stand_in(corpus: Path, bert: str, tmp_path: Path) -> None:
    tree = tiny_tree(corpus, phases=ONE_EPOCH)
    tree["data"]["text_features"] = "texts"
    with pytest.raises(RecipeError, match=r"text\.encoder"):  # which has no text model
        run_recipe(parse_recipe(tree), tmp_path / "run")
    for number, options in enumerate(({"fine_tune": True}, {"size_augmentation": "bert_style"})):
        run_recipe(recipe_of(corpus, bert, **options), tmp_path / str(number))
        assert not (tmp_path / str(number) / "text_features").exists()
        with pytest.raises(RecipeError, match=r"data\.text_features"):
            run_recipe(recipe_of(corpus, bert, "texts", **options), tmp_path / "named")


@pytest.mark.medium
def test_a_run_that_drops_states_resumes_to_the_same_numbers(corpus: Path, bert: str, tmp_path: Path) -> None:
    two = {"phases": [{"epochs": 2}]}
    tree = recipe_of(corpus, bert, size_augmentation="drop").to_dict()
    recipe = parse_recipe({**tree, "training": {**tree["training"], **two}})
    run_recipe(recipe, tmp_path / "whole")

    with pytest.raises(Stop):
        run_recipe(recipe, tmp_path / "cut", watcher=Recorder(5))
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
def test_a_run_from_stored_features_is_told_what_a_linear_map_reaches(corpus: Path, bert: str, tmp_path: Path) -> None:
    watcher = Recorder()
    run_recipe(recipe_of(corpus, bert), tmp_path / "run", watcher=watcher)
    (baseline,) = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "baseline"]
    assert 0 <= baseline["rsum"] <= 600
    assert [note for note in watcher.notes if f"{baseline['rsum']:.1f}" in note and "chance" in note]
    again = Recorder()
    run_recipe(recipe_of(corpus, bert), tmp_path / "run", resume=True, watcher=again)
    assert not [note for note in again.notes if "linear map" in note], "it is known"
    assert [record for record in read_metrics(tmp_path / "run") if record["kind"] == "baseline"] == [baseline]


@pytest.mark.medium
def test_stored_and_live_runs_end_at_the_same_weights(corpus: Path, bert: str, tmp_path: Path) -> None:
    options = {"fine_tune": True, "train_blocks": 1, "size_augmentation": "none"}
    ends = {}
    for name, text_features in (("live", None), ("stored", "auto")):
        run_recipe(recipe_of(corpus, bert, text_features, **options), tmp_path / name)
        ends[name] = torch.load(tmp_path / name / "last.pt", weights_only=True)["model"]
    store = FeatureStore(tmp_path / "stored" / "text_features")
    assert ":layer 1:" in store.fingerprint
    live, stored = losses(tmp_path / "live"), losses(tmp_path / "stored")
    # States are stored in half precision; dropout of the last block draws the same.
    assert len(live) == 4 and stored == pytest.approx(live, rel=5e-3)
    start = load_as(TwoTower, tmp_path / "stored" / "best").text.encoder
    assert start.backbone.encoder.layer[1].output.dense.weight.requires_grad
    lower = [name for name in ends["live"] if "encoder.layer.0." in name or "embeddings" in name]
    assert lower and all(torch.equal(ends["stored"][name], ends["live"][name]) for name in lower)
    # The trained model reads the same store: its lower blocks are as they were.
    assert load_as(TwoTower, tmp_path / "stored" / "best").text.encoder.fingerprint == store.fingerprint


CAPTIONS = ["red dog runs", "green cat sleeps on the grass", "blue bird", "a man", "two", "red cat on a man", "grass"]


def changed(aggregator: Any, **more: Any) -> dict[str, Any]:
    tree = tiny_tree(Path()) | more
    for side in ("image", "text"):
        tree[side]["aggregator"] = aggregator
    return tree


def gradients(model: TwoTower, tree: dict[str, Any], size: int | None) -> list[Tensor]:
    model = copy.deepcopy(model).train()
    model.chunk_size = size
    generator = torch.Generator().manual_seed(0)
    width = model.image.encoder.feature_dim
    values = torch.randn(len(CAPTIONS), 9, width, dtype=torch.float64, generator=generator)
    mask = torch.rand(len(CAPTIONS), 9, generator=generator) < 0.7
    mask[:, 0] = True
    torch.manual_seed(1)  # the augmentation and dropout of training
    images, texts = model(Inputs(values, mask), model.read_texts(CAPTIONS))
    scored = ScoredBatch(model.similarity(images, texts), torch.eye(len(CAPTIONS), dtype=torch.bool), images, texts)
    build_objective(parse_recipe(tree), model=model)(scored)["loss"].backward()
    return [weight.grad for weight in model.parameters() if weight.requires_grad]


@pytest.mark.medium
@pytest.mark.parametrize("size", [1, 3, 7, 100])
@pytest.mark.parametrize(
    "tree",
    [changed("gpo"), changed("tokens", similarity={"name": "fused", "fusion": "score_attention"})],
    ids=["gpo", "fused"],
)
def test_the_gradient_is_that_of_the_whole_batch(tree: dict[str, Any], size: int) -> None:
    tree["text"]["encoder"] |= {"size_augmentation": "none"}  # each chunk would draw other words to drop
    tree["image"]["encoder"] |= {"augmentation": "none"}
    model = build_model(parse_recipe(tree), captions=CAPTIONS).double()
    whole, chunks = gradients(model, tree, None), gradients(model, tree, size)
    assert any(gradient.abs().max() > 0 for gradient in whole)
    torch.testing.assert_close(chunks, whole)


def test_each_chunk_is_embedded_twice_with_the_same_random_numbers() -> None:
    model = build_model(parse_recipe(changed("gpo")), captions=CAPTIONS).double().train()
    seen: list[Tensor] = []
    model.image.aggregator.register_forward_pre_hook(lambda _, given: seen.append(given[0].mask.clone()))
    model.chunk_size = 3
    values, mask = torch.randn(7, 9, model.image.encoder.feature_dim).double(), torch.ones(7, 9).bool()
    images, _ = model(Inputs(values, mask), model.read_texts(CAPTIONS))
    assert [len(each) for each in seen] == [3, 3, 1]
    images.vectors.sum().backward()
    again = sorted(seen[3:], key=len, reverse=True)
    assert sorted(map(str, seen[:3])) == sorted(map(str, again))
    assert not all(bool(each.all()) for each in seen)


@pytest.mark.medium
def test_a_run_in_chunks_and_its_refusals(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path)
    tree = tiny_tree(corpus, phases=[{"epochs": 2}])
    tree["image"]["encoder"] |= {"augmentation": "none"}
    tree["text"]["encoder"] |= {"size_augmentation": "none"}
    run_recipe(parse_recipe(tree), tmp_path / "whole")
    tree["training"]["chunk_size"] = 3
    run_recipe(parse_recipe(tree), tmp_path / "chunks")
    losses = [
        [record["loss"] for record in read_metrics(tmp_path / name) if record["kind"] == "train"]
        for name in ("whole", "chunks")
    ]
    assert losses[0] and losses[1] == pytest.approx(losses[0], rel=1e-4)
    tree["image"]["encoder"] |= {"projection": "residual_mlp"}
    with pytest.raises(RecipeError, match=r"image\.encoder\.projection\.\S+"):
        run_recipe(parse_recipe(tree), tmp_path / "refused")
