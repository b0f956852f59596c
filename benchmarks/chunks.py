"""What ``training.chunk_size`` saves and costs: a training step of 1,024 pairs, whole and in chunks.

python benchmarks/chunks.py
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch

from _measure import environment, peak_memory, table
from openvse.functional import pad
from openvse.model.two_tower import TwoTower
from openvse.objectives.base import Objective
from openvse.retrieval.build import build_model, build_objective
from openvse.tasks.recipes import load_recipe
from openvse.types import Inputs, ScoredBatch

RECIPE, CELLS, WIDTH = "vse_infinity/flickr8k_grids_cpu", 49, 1280
WORDS_OF_A_TEXT = 12
VOCABULARY = " ".join(f"word{number}" for number in range(5000))

Prepared = tuple[TwoTower, Objective, Inputs, Inputs]


def prepare(pairs: int, chunk_size: int | None) -> Prepared:
    """Return a model and a batch."""
    torch.manual_seed(0)
    off = ["image.encoder.augmentation=none", "text.encoder.size_augmentation=none"]
    recipe = load_recipe(RECIPE, ["data.source=none", *off])
    model = build_model(recipe, captions=4 * [VOCABULARY]).train()
    model.chunk_size = chunk_size
    images = Inputs(torch.rand(pairs, CELLS, WIDTH), torch.ones(pairs, CELLS, dtype=torch.bool))
    tokens = torch.randint(4, 5000, (pairs, WORDS_OF_A_TEXT))
    return model, build_objective(recipe, model=model), images, pad(list(tokens))


def step(prepared: Prepared) -> float:
    """Compute the gradient of a batch, and return the loss."""
    model, objective, images, texts = prepared
    with torch.autocast("cpu", torch.bfloat16):
        embedded = model(images, texts)
        positives = torch.eye(len(embedded[0]), dtype=torch.bool)
        loss = objective(ScoredBatch(model.similarity(*embedded), positives, *embedded))["loss"]
    loss.backward()
    return float(loss.detach())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=1024)
    options = parser.parse_args()
    rows: list[list[object]] = []
    for size in (None, 256, 64):
        made = partial(prepare, options.pairs, size)
        prepared = made()
        loss = step(prepared)
        started = time.perf_counter()
        step(prepared)
        seconds = time.perf_counter() - started
        del prepared
        rows.append([size or "whole", seconds, peak_memory(step, made) / 2**20, f"{loss:.4f}"])
    print(environment())
    print(table(["chunk", "seconds", "peak MiB beyond model and batch", "loss"], rows))


if __name__ == "__main__":
    main()
