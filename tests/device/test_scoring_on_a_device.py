"""Scores are made and ranks counted on the device of the similarity, and equal those of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openvse.evaluation import rank_by_counting
from openvse.evaluation.embed import Member
from openvse.evaluation.reliability import ScoreCounts
from openvse.evaluation.report import evaluate_sets
from openvse.evaluation.rerank import Reranker
from openvse.fusion import ScoreAttentionFusion
from openvse.similarities import SIMILARITIES, SetMax, Similarity
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.types import EmbeddingSet, Relevance
from tests.device.emulated_device import Waits
from tests.tiny import Recorder, tiny_tree, write_tiny_corpus

IMAGES, TEXTS, WIDTH = 24, 48, 8
RELEVANCE = Relevance(np.arange(TEXTS) // 2, np.arange(TEXTS), IMAGES, TEXTS)


def embeddings(count: int, seed: int) -> EmbeddingSet:
    """Return embeddings on the CPU, some of which are equal, so that there are ties."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, 1, WIDTH, generator=generator).round()
    vectors[:, :, 0] += 0.5
    return EmbeddingSet(torch.nn.functional.normalize(vectors, dim=-1), torch.ones(count, 1, dtype=torch.bool))


def made(name: str) -> Similarity:
    torch.manual_seed(0)
    options: dict[str, Any] = (
        {"embed_dim": WIDTH, "fusion": lambda **given: ScoreAttentionFusion(num_heads=2, **given)}
        if name == "fused"
        else {}
    )
    return SIMILARITIES.get(name)(**options).eval()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_similarity_knows_where_it_is(waits: Waits, device: str) -> None:
    for name in SIMILARITIES:
        assert made(name).to(device).device.type == device


@pytest.mark.parametrize("again", [False, True])
def test_a_report_is_that_of_the_cpu(waits: Waits, again: bool) -> None:
    images, texts = embeddings(IMAGES, 1), embeddings(TEXTS, 2)
    reports, places = [], set[str]()
    for device in ("cpu", "cuda"):
        fused = made("fused").to(device)
        counts = ScoreCounts(Member(images, texts, SetMax().to(device)), RELEVANCE)

        def see(rows: slice, columns: slice, scores: torch.Tensor, counts: ScoreCounts = counts) -> None:
            places.add(scores.device.type)
            counts.see(rows, columns, scores)

        member = Member(images, texts, fused)
        more = {"reranker": Reranker(member, 5)} if again else {"others": [member], "every": True}
        more |= {"resamples": 0, "block_size": 16, "keep": 3, "see": see}
        report = evaluate_sets(images, texts, RELEVANCE, SetMax().to(device), **more)
        reports.append((report.metrics, report.remarks, counts.relevant.tolist(), counts.irrelevant.sum()))
    assert reports[0] == reports[1]
    assert places == {"cpu", "cuda"}


def test_ties_are_pessimistic_there_too(waits: Waits) -> None:
    ranks = rank_by_counting(
        lambda rows, columns: torch.zeros(4, 4, device="cuda")[rows, columns],
        Relevance(np.arange(4), np.arange(4), 4, 4),
        device="cuda",
        block_size=2,
    )
    assert ranks.i2t.ranks.tolist() == ranks.t2i.ranks.tolist() == [4] * 4


def test_a_model_that_scores_pairs_trains_and_validates_as_on_a_cpu(waits: Waits, tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "tiny")
    tree = tiny_tree(corpus, phases=[{"epochs": 2}]) | {
        "similarity": {"name": "fused", "fusion": {"name": "score_attention", "num_heads": 2}}
    }
    tree["image"] = {**tree["image"], "aggregator": "tokens"}
    tree["text"] = {**tree["text"], "aggregator": "tokens"}
    tree["text"]["encoder"] = {**tree["text"]["encoder"], "size_augmentation": "none"}
    scored: list[list[dict[str, float]]] = []
    for device in ("cpu", "cuda"):
        watcher = Recorder()
        tree["training"] = {**tree["training"], "device": device}
        run_recipe(parse_recipe(tree), tmp_path / device, watcher=watcher)
        scored.append([epoch.metrics for epoch in watcher.epochs])
    assert scored[0] == scored[1]
