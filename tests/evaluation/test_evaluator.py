import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from openvse.cli.app import app
from openvse.errors import DataError, ModelError
from openvse.evaluation.ranking import ALONE, Processes
from openvse.evaluation.report import Report, evaluate_sets
from openvse.functional import normalize, set_max_scores
from openvse.retrieval.build import build_model
from openvse.types import EmbeddingSet, Relevance
from tests.forking import side_by_side
from tests.naming import names, refusal
from tests.tiny import tiny_recipe, write_tiny_corpus


def embeddings(vectors: Tensor) -> EmbeddingSet:
    """Return unit embeddings of vectors [B, D] or [B, K, D], all of which exist."""
    sets = vectors if vectors.dim() == 3 else vectors.unsqueeze(1)
    return EmbeddingSet(normalize(sets), torch.ones(sets.shape[:2], dtype=torch.bool))


def corpus(
    num_images: int = 40, captions: int = 5, noise: float = 1.0, seed: int = 0
) -> tuple[EmbeddingSet, EmbeddingSet, Relevance]:
    """Return embeddings of images, of noisy texts about them, and which belong together."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, 16, generator=generator)
    texts = images.repeat_interleave(captions, 0)
    texts = texts + noise * torch.randn(texts.shape, generator=generator)
    pairs = np.arange(len(texts))
    return embeddings(images), embeddings(texts), Relevance(pairs // captions, pairs, num_images, len(texts))


def test_perfect_embeddings_score_600() -> None:
    report = evaluate_sets(*corpus(noise=0.0), set_max_scores)
    assert report.metrics["rsum"] == 600.0
    assert report.intervals["rsum"] == (600.0, 600.0)
    assert report.metrics["i2t_medr"] == report.metrics["t2i_meanr"] == 1.0


def test_a_report_remembers_its_protocol() -> None:
    images, texts, relevance = corpus()
    options = {"name": "toy test", "model": "abc", "seed": 3, "resamples": 10, "block_size": 32}
    report = evaluate_sets(images, texts, relevance, set_max_scores, **options)
    assert report.protocol.name == "toy test"
    assert (report.protocol.num_images, report.protocol.num_texts) == (40, 200)
    assert (report.protocol.seed, report.protocol.resamples, report.protocol.block_size) == (3, 10, 32)
    assert report.model == "abc"
    assert "| a paper |" in replace(report, published={"a paper": {"rsum": 500.0}}).to_markdown()


def test_without_resamples_there_are_no_intervals() -> None:
    assert evaluate_sets(*corpus(), set_max_scores, resamples=0).intervals == {}


def test_seed_decides_the_intervals() -> None:
    one, same, other = (evaluate_sets(*corpus(noise=3.0), set_max_scores, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one.metrics == other.metrics
    assert one.intervals != other.intervals


def fold(number: int, images: EmbeddingSet, texts: EmbeddingSet) -> Report:
    """Return the report of ten images and their fifty texts, cut out by hand."""
    pairs = np.arange(50)
    return evaluate_sets(
        images[10 * number : 10 * number + 10],
        texts[50 * number : 50 * number + 50],
        Relevance(pairs // 5, pairs, 10, 50),
        set_max_scores,
    )


@pytest.mark.medium
def test_folds_are_the_mean_of_their_reports() -> None:
    images, texts, relevance = corpus(noise=3.0)
    report = evaluate_sets(images, texts, relevance, set_max_scores, folds=4)
    apart = [fold(number, images, texts) for number in range(4)]
    for name in report.metrics:
        assert report.metrics[name] == pytest.approx(np.mean([part.metrics[name] for part in apart]))
    assert report.chance["rsum"] == pytest.approx(apart[0].chance["rsum"])
    assert report.metrics["rsum"] > evaluate_sets(images, texts, relevance, set_max_scores).metrics["rsum"]
    low, high = report.intervals["rsum"]
    assert low < report.metrics["rsum"] < high
    assert high - low < np.mean([part.intervals["rsum"][1] - part.intervals["rsum"][0] for part in apart])
    assert report.protocol.folds == 4


def test_folds_take_their_texts_wherever_they_stand() -> None:
    images, texts, relevance = corpus(noise=3.0)
    shuffled = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    moved = Relevance(relevance.images[shuffled.numpy()], np.arange(200), 40, 200)
    assert (
        evaluate_sets(images, texts[shuffled], moved, set_max_scores, folds=4, resamples=0).metrics
        == evaluate_sets(images, texts, relevance, set_max_scores, folds=4, resamples=0).metrics
    )


def test_sets_of_embeddings_are_scored_by_their_similarity() -> None:
    generator = torch.Generator().manual_seed(0)
    texts = torch.randn(30, 1, 8, generator=generator)
    views = torch.cat([torch.randn(30, 2, 8, generator=generator), texts], dim=1)
    pairs = np.arange(30)
    relevance = Relevance(pairs, pairs, 30, 30)
    assert evaluate_sets(embeddings(views), embeddings(texts), relevance, set_max_scores).metrics["rsum"] == 600.0


def test_the_default_block_shrinks_with_the_number_of_embeddings() -> None:
    one = evaluate_sets(*corpus(), set_max_scores, resamples=0)
    generator = torch.Generator().manual_seed(0)
    sets = embeddings(torch.randn(3, 20, 4, generator=generator))
    many = evaluate_sets(sets, sets, Relevance(np.arange(3), np.arange(3), 3, 3), set_max_scores, resamples=0)
    assert one.protocol.block_size == 512
    assert many.protocol.block_size == 512 // 20


def test_half_precision_is_compared_in_single() -> None:
    images, texts, relevance = corpus(noise=3.0)
    seen = []

    def similarity(one: EmbeddingSet, other: EmbeddingSet) -> Tensor:
        seen.append(one.vectors.dtype)
        return set_max_scores(one, other)

    halved = [EmbeddingSet(side.vectors.half(), side.mask) for side in (images, texts)]
    report = evaluate_sets(halved[0], halved[1], relevance, similarity)
    assert set(seen) == {torch.float32}
    assert report.metrics["rsum"] == pytest.approx(
        evaluate_sets(images, texts, relevance, similarity).metrics["rsum"], abs=5
    )


def test_scores_stay_block_sized() -> None:
    images, texts, relevance = corpus()
    shapes = []

    def similarity(one: EmbeddingSet, other: EmbeddingSet) -> Tensor:
        shapes.append(len(one) * len(other))
        return set_max_scores(one, other)

    evaluate_sets(images, texts, relevance, similarity, block_size=16)
    assert max(shapes) <= 16 * 20  # 40 images are cut into 6 runs of at most 7


def test_gradients_are_not_tracked() -> None:
    images, texts, relevance = corpus()
    weight = torch.nn.Parameter(torch.ones(()))

    def similarity(one: EmbeddingSet, other: EmbeddingSet) -> Tensor:
        scores = weight * set_max_scores(one, other)
        assert not scores.requires_grad
        return scores

    evaluate_sets(images, texts, relevance, similarity)


def test_a_broken_model_is_an_error() -> None:
    images, texts, relevance = corpus()
    images.vectors[7] = float("nan")
    assert names(refusal(ModelError, evaluate_sets, images, texts, relevance, set_max_scores), "NaN")


@pytest.mark.parametrize("folds", [0, 41])
def test_impossible_folds_are_refused(folds: int) -> None:
    assert names(refusal(DataError, lambda: evaluate_sets(*corpus(), set_max_scores, folds=folds)), "1", "40")


def test_missing_embeddings_are_refused() -> None:
    images, texts, relevance = corpus()
    with pytest.raises(DataError, match="39.*200.*40.*200") as error:
        evaluate_sets(images[:39], texts, relevance, set_max_scores)
    assert "\n" not in str(error.value)


def test_turns_follow_the_order_of_the_tasks() -> None:
    assert list(ALONE.take_turns(range(5), lambda task: task * task)) == [(n, n * n) for n in range(5)]
    done: dict[int, list[int]] = {0: [], 1: []}
    for rank, mine in done.items():

        class Pair(Processes):
            def gather(self, one):  # the other process does the same with its task
                return [one, one]

        for _ in Pair(rank, 2).take_turns(range(5), mine.append):
            pass
    assert done == {0: [0, 2, 4], 1: [1, 3]}


@pytest.mark.slow
def test_two_processes_evaluate_as_one(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus", train=40)
    torch.manual_seed(0)
    model = build_model(tiny_recipe(corpus), captions=["red dog runs", "green cat sits"]).save(tmp_path / "model")
    options = ["--on", corpus / "tiny.csv", "--split", "train", "--features", corpus / "features"]
    evaluate = [*map(str, ("evaluate", model, *options)), "--batch-size", "3", "--every", "--json"]
    alone = CliRunner().invoke(app, evaluate)
    assert alone.exit_code == 0, alone.output
    shared, nothing = side_by_side(tmp_path, 2, *evaluate)
    assert nothing == ""
    reports = [json.loads(told)["result"]["report"] for told in (alone.stdout, shared)]
    assert reports[0]["protocol"]["num_images"] == 40
    assert reports[0] == reports[1]
