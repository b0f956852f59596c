"""Time of a text query against galleries of embedded images (VSE-infinity, Fig. 3; VSE+2AD, Table 2).

    python benchmarks/retrieval_time.py
    python benchmarks/retrieval_time.py runs/mine runs/other --sizes 1000 10000 100000

Embeddings are random and have the shape of those of each model: the time does not depend on their values, so no data
are needed. Without models, untrained ones of width 1024 take their places: one embedding of an image, three, and pairs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from _measure import environment, table
from openvse.functional import normalize
from openvse.model.two_tower import TwoTower, evaluating
from openvse.retrieval.build import build_model
from openvse.tasks.recipes import parse_recipe
from openvse.training.environment import expect_memory
from openvse.types import EmbeddingSet, Inputs
from openvse_papers.analysis.opening import open_two_towers

SIZES = (100, 1_000, 10_000, 100_000)
LONGEST_S = 20.0  # a gallery for which a query is expected to take longer is not measured
PAIR_BLOCK = 256  # models that score pairs keep the tokens of so many images at a time

SENTENCE = "a man in a red jacket is riding a bicycle"
ENCODER = {"name": "efficientnet_lite0", "pretrained": False}
WORDS = {"name": "bigru", "word_dim": 300, "min_count": 1}
UNTRAINED: dict[str, dict[str, object]] = {
    "one vector": {"aggregator": "gpo"},
    "three views": {"aggregator": {"name": "multi_view", "num_views": 3}},
    "pairs": {"aggregator": "tokens", "similarity": {"name": "fused", "fusion": {"name": "score_attention"}}},
}


@dataclass(frozen=True)
class Timed:
    """The seconds of one query against a gallery: median over the repetitions, fastest and slowest."""

    name: str
    kind: str
    size: int
    seconds: float
    low: float
    high: float


def time_retrieval(
    towers: Mapping[str, TwoTower], sizes: Sequence[int] = SIZES, *, repeats: int = 5, tokens: int = 36
) -> list[Timed]:
    """Time one text query against galleries of images.

    Args:
        towers: the models by their names.
        sizes: numbers of images.
        repeats: how often each query is timed; one more warms up.
        tokens: how many local features an image of a pair scorer has.
    """
    return [timed for name, model in towers.items() for timed in _time_model(name, model, sizes, repeats, tokens)]


def _time_model(name: str, model: TwoTower, sizes: Sequence[int], repeats: int, tokens: int) -> Iterator[Timed]:
    one_image, one_text = _shapes(model, tokens)
    pairs = not model.image.aggregator.fixed_k
    kind = f"pairs, {one_image[0]} tokens" if pairs else f"{one_image[0]} embedding{'s' * (one_image[0] > 1)}"
    before, median = 0, 0.0
    for size in sorted(sizes):
        if before and median * size / before > LONGEST_S:
            return
        block = min(size, PAIR_BLOCK) if pairs else size
        expect_memory(4 * block * one_image[0] * one_image[1], f"a gallery of {size:,} images")
        gallery, query = _random(block, *one_image), _random(1, *one_text)
        with evaluating(model):
            seconds = time_calls(partial(_ask, model, gallery, query, size), repeats)
        before, median = size, statistics.median(seconds)
        yield Timed(name, kind, size, median, min(seconds), max(seconds))


def _ask(model: TwoTower, gallery: EmbeddingSet, query: EmbeddingSet, size: int) -> None:
    """Score a query against ``size`` images; if the gallery has fewer, it is scored again and again."""
    for start in range(0, size, len(gallery)):
        model.score(gallery[: min(len(gallery), size - start)], query)


@torch.inference_mode()
def _shapes(model: TwoTower, tokens: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the number and width of the embeddings of an image with ``tokens`` local features, and of a sentence."""
    local = torch.randn(1, tokens, model.image.encoder.feature_dim, device=model.device)
    real = torch.ones(1, tokens, dtype=torch.bool, device=model.device)
    with evaluating(model):
        image: EmbeddingSet = model.image(Inputs(local, real))
    text = model.encode_text([SENTENCE])
    (images, image_width), (texts, text_width) = image.vectors.shape[1:], text.vectors.shape[1:]
    return (images, image_width), (texts, text_width)


def _random(count: int, embeddings: int, width: int) -> EmbeddingSet:
    vectors = torch.randn(count, embeddings, width)
    return EmbeddingSet(normalize(vectors), torch.ones(count, embeddings, dtype=torch.bool))


def time_calls(call: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of each repetition of a call, after one that is not counted."""
    call()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return seconds


def untrained(width: int = 1024) -> dict[str, TwoTower]:
    """Return untrained models of each kind."""
    towers = {}
    for name, chosen in UNTRAINED.items():
        side = chosen["aggregator"]
        text = "tokens" if side == "tokens" else "gpo"
        tree = {
            "name": "untrained",
            "embed_dim": width,
            "image": {"encoder": ENCODER, "aggregator": side},
            "text": {"encoder": WORDS, "aggregator": text},
            "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": "hinge"}},
            "data": {"source": "unused"},
            "training": {"phases": [{"epochs": 1}]},
        }
        tree |= {"similarity": chosen["similarity"]} if "similarity" in chosen else {}
        towers[name] = build_model(parse_recipe(tree), captions=[SENTENCE], seed=0).eval()
    return towers


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="runs or models; NAME=MODEL names one in the table")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="images in the gallery")
    parser.add_argument("--tokens", type=int, default=36, help="local features of an image, for pair scorers")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    towers = open_two_towers(given.models, "cpu") if given.models else untrained()
    timed = time_retrieval(towers, given.sizes, repeats=given.repeats, tokens=given.tokens)
    print(environment())
    print(
        table(
            ["model", "compared", "gallery", "ms", "fastest, ms", "slowest, ms"],
            [[t.name, t.kind, t.size, *(1e3 * s for s in (t.seconds, t.low, t.high))] for t in timed],
        )
    )


if __name__ == "__main__":
    main()
