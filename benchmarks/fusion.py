"""Scores that depend on the pair: tiles against a loop over pairs, and training against a graph of all pairs.

python benchmarks/fusion.py [--whole]

``--whole`` scores 1,000 images against 5,000 texts, too, to show that memory does not follow their number.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import torch
from torch import Tensor

from _measure import environment, median_times, peak_memory, table
from openvse.functional import position_mask
from openvse.fusion import Fusion, ScoreAttentionFusion
from openvse.fusion.base import score_pairs
from openvse.objectives import Contrast, Hardest, Hinge
from openvse.similarities import Fused
from openvse.similarities.scores import score_blocks
from openvse.types import EmbeddingSet, ScoredBatch

CELLS, WORDS = 49, 14
FEW_CELLS = 16  # so that five million pairs take minutes
HEADS = 4


def tokens(items: int, most: int, width: int) -> EmbeddingSet:
    """Return sets of cells, all as long, or of words, of 6 to ``WORDS`` each."""
    lengths = torch.full((items,), most) if most != WORDS else torch.randint(6, most + 1, (items,))
    lengths[0] = most
    return EmbeddingSet(torch.randn(items, most, width), position_mask(lengths, most))


def fusion_of(width: int) -> Fusion:
    """Return score attention, ready to score."""
    torch.manual_seed(0)
    return ScoreAttentionFusion(embed_dim=width, num_heads=HEADS).eval()


@torch.inference_mode()
def tiled(fusion: Fusion, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
    """Score all pairs as openvse does."""
    return score_pairs(fusion, *fusion.prepare(images, texts))


@torch.inference_mode()
def one_by_one(fusion: Fusion, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
    """Score one pair after the other, as code does that was written for one pair."""
    rows = [
        [score_pairs(fusion, *fusion.prepare(images[i : i + 1], texts[t : t + 1])) for t in range(len(texts))]
        for i in range(len(images))
    ]
    return torch.stack([torch.cat([score.flatten() for score in row]) for row in rows])


def blocks(sizes: tuple[int, int, int]) -> None:
    """Score many images against many texts, a block at a time, and forget the scores."""
    images, texts, width = sizes
    similarity = Fused(embed_dim=width, fusion=partial(ScoreAttentionFusion, num_heads=HEADS)).eval()
    for _ in score_blocks(similarity, tokens(images, FEW_CELLS, width), tokens(texts, WORDS, width), 64):
        pass


def whole_graph(fusion: Fusion, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
    """Score all pairs and keep the graph of every one."""
    prepared = fusion.prepare(images, texts)
    rows = torch.arange(len(images)).repeat_interleave(len(texts))
    columns = torch.arange(len(texts)).repeat(len(images))
    scores = fusion.score(prepared[0][rows], prepared[1][columns])
    return scores.view(len(images), len(texts))


def train(batch: tuple[Fusion, EmbeddingSet, EmbeddingSet], ours: bool) -> None:
    """Take the hardest-negative triplet loss of a batch, and its gradient."""
    fusion, images, texts = batch
    scores = score_pairs(fusion, *fusion.prepare(images, texts)) if ours else whole_graph(*batch)
    positives = torch.eye(len(images), dtype=torch.bool)
    term = Contrast(miner=Hardest(), criterion=Hinge())
    term(ScoredBatch(scores, positives, images, texts)).backward()
    fusion.zero_grad()


def batch_of(size: int, width: int) -> tuple[Fusion, EmbeddingSet, EmbeddingSet]:
    """Return what a training step gets."""
    return fusion_of(width).train(), tokens(size, CELLS, width), tokens(size, WORDS, width)


def main() -> None:
    """Print the tables."""
    print(environment())
    rows: list[list[object]] = []
    for width in (128, 512):
        fusion, images, texts = fusion_of(width), tokens(8, CELLS, width), tokens(16, WORDS, width)
        runs = [partial(run, fusion, images, texts) for run in (tiled, one_by_one)]
        torch.testing.assert_close(runs[0](), runs[1](), rtol=0, atol=1e-4)
        ours, loop = (len(images) * len(texts) / seconds for seconds in median_times(runs, repeats=5))
        rows.append([width, int(ours), int(loop), ours / loop])
    print(table(["width", "tiles, pairs/s", "loop over pairs, pairs/s", "ratio"], rows))

    rows = []
    for size in (16, 32):
        steps = [partial(train, batch_of(size, 128), ours) for ours in (True, False)]
        ours, graph = median_times(steps, repeats=5)
        memory = [
            peak_memory(partial(train, ours=mine), partial(batch_of, size, 128)) / 2**20 for mine in (True, False)
        ]
        rows.append([size, 1e3 * ours, 1e3 * graph, graph / ours, *map(int, memory), memory[1] / memory[0]])
    header = ["batch", "ours, ms", "whole graph, ms", "ratio", "ours, MiB", "whole graph, MiB", "ratio"]
    print(table(header, rows))

    if "--whole" in sys.argv:
        rows = []
        for images, texts in ((100, 500), (1000, 5000)):
            started = time.perf_counter()
            memory = [peak_memory(blocks, partial(tuple, (images, texts, 32))) / 2**20]
            seconds = time.perf_counter() - started
            rows.append([f"{images} x {texts}", int(images * texts / seconds), int(memory[0])])
        print(table(["images x texts, width 32", "pairs/s, start-up included", "peak MiB with the tokens"], rows))


if __name__ == "__main__":
    main()
