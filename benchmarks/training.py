"""A training step of VSE-infinity on a CPU against a plain PyTorch loop: the same weights, batches and losses.

python benchmarks/training.py

The plain loop is written as research code usually is: packed sequences of PyTorch for both GRUs, coefficients for each
item of a batch, ``torch.sort`` of padded sets, and the hinge on a matrix with its diagonal masked.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from _measure import environment, median_times, table
from openvse.functional import pad, sinusoidal_positions
from openvse.model.two_tower import TwoTower
from openvse.objectives.base import Objective
from openvse.retrieval.build import build_model, build_objective
from openvse.tasks.recipes import load_recipe
from openvse.training.optimizer import build_optimizer
from openvse.types import Inputs, ScoredBatch

BATCH, CLIP_NORM, COMPARED_STEPS = 128, 2.0, 20
SETTINGS = {
    "regions, 36 x 2048, 1024 wide": ("vse_infinity/coco_regions_bigru", 36, 2048),
    "Flickr8k's CPU recipe, 49 x 1280, 512 wide": ("vse_infinity/flickr8k_grids_cpu", 49, 1280),
}
Batch = tuple[Inputs, Inputs]
Loss = Callable[[Batch], Tensor]


class PlainPooling(nn.Module):
    """GPO as released code writes it, with the weights of one of ours."""

    def __init__(self, gpo: nn.Module) -> None:
        super().__init__()
        self.generator = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.generator.load_state_dict(gpo.generator.state_dict())
        self.score = copy.deepcopy(gpo.score)

    def forward(self, local: Tensor, mask: Tensor) -> Tensor:
        """Pool a padded batch."""
        lengths = mask.sum(dim=1)
        codes = sinusoidal_positions(int(lengths.max()), 32).expand(len(local), -1, -1)
        states = run_gru(self.generator, codes, lengths)
        logits = self.score(states).squeeze(-1).masked_fill(~mask, -10000) / 0.1
        ranked = local.masked_fill(~mask.unsqueeze(-1), -10000).sort(dim=1, descending=True)[0]
        ranked = ranked.masked_fill(~mask.unsqueeze(-1), 0)
        return (logits.softmax(dim=1).unsqueeze(-1) * ranked).sum(dim=1)


class PlainModel(nn.Module):
    """Two towers with the weights of one of our models."""

    def __init__(self, model: TwoTower) -> None:
        super().__init__()
        self.projection = copy.deepcopy(model.image.encoder.projection)
        self.words = copy.deepcopy(model.text.encoder.words)
        self.gru = copy.deepcopy(model.text.encoder.gru)
        self.pools = nn.ModuleList(PlainPooling(tower.aggregator) for tower in (model.image, model.text))

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        images, texts = batch
        regions = self.pools[0](self.projection(images.values, images.mask), images.mask)
        tokens = run_gru(self.gru, self.words(texts.values), texts.mask.sum(dim=1))
        sentences = self.pools[1](tokens, texts.mask)
        return hardest_hinge(nn.functional.normalize(regions) @ nn.functional.normalize(sentences).T)


def run_gru(gru: nn.GRU, values: Tensor, lengths: Tensor) -> Tensor:
    """Run a GRU over packed sequences and average its directions."""
    packed = pack_padded_sequence(values, lengths, batch_first=True, enforce_sorted=False)
    return torch.stack(pad_packed_sequence(gru(packed)[0], batch_first=True)[0].chunk(2, dim=2)).mean(dim=0)


def hardest_hinge(scores: Tensor, margin: float = 0.2) -> Tensor:
    """Sum the violations of the hardest negatives, in both directions."""
    positive, own = scores.diag().unsqueeze(1), torch.eye(len(scores), dtype=torch.bool)
    of_images = (margin + scores - positive).clamp(min=0).masked_fill(own, 0)
    of_texts = (margin + scores - positive.T).clamp(min=0).masked_fill(own, 0)
    return of_images.max(dim=1)[0].sum() + of_texts.max(dim=0)[0].sum()


def our_loss(model: TwoTower, objective: Objective, batch: Batch) -> Tensor:
    """Return the loss of a batch as the trainer computes it."""
    images, texts = model(*batch)
    positives = torch.eye(len(images), dtype=torch.bool)
    return objective(ScoredBatch(model.similarity(images, texts), positives, images, texts))["loss"]


def step(
    loss_of: Loss, module: nn.Module, optimizer: torch.optim.Optimizer, drawn: Iterator[Batch], precision: torch.dtype
) -> float:
    """Train on one batch and return its loss."""
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        loss = loss_of(next(drawn))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), CLIP_NORM)
    optimizer.step()
    return loss.item()


def batches(model: TwoTower, captions: list[str], elements: int, width: int) -> Iterator[Batch]:
    """Yield the same random batches each time: features without padding, and one caption for each image."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(BATCH, elements, dtype=torch.bool)
    features = torch.rand(BATCH, elements, width, generator=generator)
    while True:
        chosen = torch.randint(len(captions), (BATCH,), generator=generator).tolist()
        tokens = model.text.encoder.tokenize([captions[number] for number in chosen])
        yield Inputs(features.roll(chosen[0], dims=0), mask), pad(tokens)


def measure(name: str, precision: torch.dtype) -> list[object]:
    """Return a row: milliseconds of a step of each way, and how far their losses differ over the first steps."""
    recipe_name, elements, width = SETTINGS[name]
    off = ["image.encoder.augmentation=none", "text.encoder.size_augmentation=none"]
    recipe = load_recipe(recipe_name, ["data.source=none", *off])
    random.seed(0)
    words = [f"word{number}" for number in range(8000)]
    captions = [" ".join(random.choices(words, k=random.randint(7, 17))) for _ in range(4000)]
    model = build_model(recipe, captions=captions)
    plain, objective = PlainModel(model).train(), build_objective(recipe, model=model)
    trained = [(key, weight) for key, weight in model.named_parameters() if weight.requires_grad]
    spec, kept = recipe.optimizer, [weight for weight in plain.parameters() if weight.requires_grad]
    ways: list[tuple[Loss, nn.Module, torch.optim.Optimizer]] = [
        (partial(our_loss, model.train(), objective), model, build_optimizer(spec, trained)),
        (plain, plain, torch.optim.AdamW(kept, lr=spec.learning_rate, weight_decay=spec.weight_decay)),
    ]
    runs = [partial(step, *way, batches(model, captions, elements, width), precision) for way in ways]
    ours, theirs = ([run() for _ in range(COMPARED_STEPS)] for run in runs)
    apart = max(abs(one - other) / other for one, other in zip(ours, theirs, strict=True))
    mine, other = (1e3 * seconds for seconds in median_times(runs, repeats=9, warmup=1))
    return [name, str(precision).removeprefix("torch."), mine, other, other / mine, f"{apart:.1e}"]


def main() -> None:
    """Print the table."""
    rows = [measure(name, precision) for name in SETTINGS for precision in (torch.float32, torch.bfloat16)]
    print(environment())
    header = ["setting", "precision", "openvse, ms", "plain loop, ms", "ratio", "largest difference of the loss"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
