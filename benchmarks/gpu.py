"""What a GPU computes and how fast: agreement with the CPU, training steps, pooling, memory and evaluation.

Without a GPU it says so and measures nothing; `--device cpu --share 0.05` tries the script itself. It reads no data and
no network.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor

from _measure import table
from openvse.aggregators import GPO, Max
from openvse.evaluation import rank_by_counting
from openvse.functional import pad, position_mask
from openvse.model import TwoTower
from openvse.retrieval.build import build_model, build_objective
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.recipes import load_recipe
from openvse.types import Batch, Features, Relevance, ScoredBatch

RECIPES = ("vse_infinity/coco_regions_bigru", "pvse/coco_grids_bigru", "score_attention/coco_regions_bigru")
WORDS = (
    "a dog runs on the grass",
    "two red birds near water",
    "a man rides a horse",
    "food on a white table",
)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(function: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the seconds of a call, of some that follow one another without waiting."""
    for _ in range(3):
        function()
    wait(device)
    started = time.perf_counter()
    for _ in range(repeats):
        function()
    wait(device)
    return (time.perf_counter() - started) / repeats


def made(name: str, width: int) -> tuple[RetrievalRecipe, TwoTower]:
    """Build the model of a recipe on stored regions, without dropped words, at some width."""
    changes = [f"embed_dim={width}", "text.encoder.min_count=1", "text.encoder.tokenizer=words"]
    changes += ["text.encoder.size_augmentation=none"]
    plain = "{name: precomputed, feature_dim: 2048, augmentation: none, projection: linear}"
    vector = (
        "{name: precomputed, feature_dim: 2048, augmentation: none, projection: none, global_vector: mean}"
    )
    recipe = load_recipe(name, [*changes, f"image.encoder={vector if name.startswith('pvse') else plain}"])
    return recipe, build_model(recipe, captions=WORDS, seed=0)


def batch_of(model: TwoTower, size: int) -> Batch:
    """Draw regions, and take sentences in turn."""
    generator = torch.Generator().manual_seed(0)
    images = pad([torch.randn(36, 2048, generator=generator) for _ in range(size)])
    texts = pad(model.text.encoder.tokenize([WORDS[number % len(WORDS)] for number in range(size)]))
    pairs = torch.arange(size)
    return Batch(images, texts, torch.eye(size, dtype=torch.bool), pairs, torch.stack([pairs, pairs], dim=1))


class Steps:
    """Training steps on one batch."""

    def __init__(self, recipe: RetrievalRecipe, model: TwoTower, batch: Batch, device: torch.device) -> None:
        self.model = model.to(device).train()
        self.objective = build_objective(recipe, recipe.training.phases[-1], model=model).to(device)
        self.batch, self.device = batch, device
        learned = [*self.model.parameters(), *self.objective.parameters()]
        self.optimizer = torch.optim.AdamW([p for p in learned if p.requires_grad], lr=1e-4, fused=True)

    def loss(self) -> Tensor:
        moved = self.batch.to(self.device)
        images, texts = self.model(moved.images, moved.texts)
        scores = self.model.similarity(images, texts)
        loss: Tensor = self.objective(ScoredBatch(scores, moved.positives, images, texts))["loss"]
        return loss

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def agreement(device: torch.device, width: int, size: int, steps: int) -> list[list[str]]:
    """Compare the first loss, its gradients, and the loss after some steps with those of the CPU, in fp32."""
    recipe, model = made(RECIPES[0], width)
    batch = batch_of(model, size)
    found = []
    for place in (torch.device("cpu"), device):
        run = Steps(recipe, copy.deepcopy(model), batch, place)
        first = run.loss()
        first.backward()
        slope = torch.cat([p.grad.flatten().cpu() for p in run.model.parameters() if p.grad is not None])
        for _ in range(steps):
            last = run()
        found.append((float(first.detach()), slope, float(last)))
    here, there = found
    rows = {
        "loss": abs(there[0] - here[0]) / abs(here[0]),
        "gradients": float((there[1] - here[1]).norm() / here[1].norm()),
        f"loss after {steps} steps": abs(there[2] - here[2]) / abs(here[2]),
    }
    return [
        [f"{name}, relative difference from the CPU", f"{value:.1e}", "1e-4"] for name, value in rows.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--share", type=float, default=1.0, help="of the sizes, to try the script")
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("not run: PyTorch finds no GPU here (torch.cuda.is_available() is False)")
        return
    width, size = 16 * max(1, int(64 * given.share)), max(8, int(128 * given.share))
    rows = agreement(device, width, size, steps=max(2, int(50 * given.share)))
    for name in RECIPES:
        recipe, model = made(name, width)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        run = Steps(recipe, model, batch_of(model, size), device)
        rows.append([f"{name}, images a second", f"{size / seconds(run, device, given.repeats):,.0f}", ""])
        if device.type == "cuda":
            rows.append(
                [f"{name}, peak memory, MiB", f"{torch.cuda.max_memory_allocated() / 2**20:,.0f}", ""]
            )
    rows += pooling(device, width, size, given.repeats)
    rows += evaluation(device, width, max(20, int(5000 * given.share)))
    print(table(["what", str(device), "goal"], rows))


def pooling(device: torch.device, width: int, size: int, repeats: int) -> list[list[str]]:
    """Time GPO beside the maximum, forward and backward."""
    local = torch.randn(size, 36, width, device=device, requires_grad=True)
    features = Features(local, position_mask(torch.full((size,), 36, device=device), 36))
    times = []
    for part in (Max(input_dim=width, embed_dim=width), GPO(input_dim=width, embed_dim=width)):
        part.to(device)
        times.append(seconds(lambda part=part: part(features).vectors.sum().backward(), device, repeats))  # type: ignore[misc]
    return [["GPO / max, forward and backward", f"{times[1] / times[0]:.2f}", "1.2"]]


def evaluation(device: torch.device, width: int, count: int) -> list[list[str]]:
    """Time the ranks of images and five texts of each, from embeddings on the CPU."""
    images = torch.nn.functional.normalize(torch.randn(count, width), dim=1)
    texts = torch.nn.functional.normalize(torch.randn(5 * count, width), dim=1)
    pairs = torch.arange(5 * count)
    relevance = Relevance((pairs // 5).numpy(), pairs.numpy(), count, 5 * count)
    started = time.perf_counter()
    rank_by_counting(
        lambda rows, columns: images[rows].to(device) @ texts[columns].to(device).T, relevance, device=device
    )
    wait(device)
    return [[f"evaluation of {count:,} x {5 * count:,}, s", f"{time.perf_counter() - started:.2f}", ""]]


if __name__ == "__main__":
    main()
