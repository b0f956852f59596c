"""What every shipped recipe must hold: it builds, a step lowers the loss, it saves and reloads to equal scores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from openvse.build import build_model, build_objective, load_model
from openvse.functional import pad
from openvse.model import TwoTower
from openvse.objectives import Objective
from openvse.recipe import Recipe, list_recipes, load_recipe
from openvse.types import Inputs, ScoredBatch

PAIRS = 32
CAPTIONS = [f"thing{n} of kind{n % 7} near place{n % 5}" for n in range(PAIRS)]


def shrink(name: str) -> Recipe:
    """The same recipe at a width that a test can afford, without random drops of its input."""
    return load_recipe(
        name, ["embed_dim=32", "text.encoder.size_augmentation=none", "text.encoder.min_count=1"]
    )


def stored_images(model: TwoTower) -> Inputs:
    """Ragged local features of 32 images, of the width that the encoder stores."""
    generator = torch.Generator().manual_seed(0)
    return pad(
        [torch.randn(4 + n % 6, model.image.encoder.feature_dim, generator=generator) for n in range(PAIRS)]
    )


def score(model: TwoTower, images: Inputs) -> ScoredBatch:
    embedded = model(images, pad(model.text.encoder.tokenize(CAPTIONS)))
    return ScoredBatch(model.similarity(*embedded), torch.eye(PAIRS, dtype=torch.bool), *embedded)


def fit(model: TwoTower, objective: Objective, images: Inputs, steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(
        [p for p in (*model.parameters(), *objective.parameters()) if p.requires_grad], lr=1e-3
    )
    losses = []
    for _ in range(steps):
        loss = objective(score(model, images))["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("name", list_recipes())
def test_recipe_builds_learns_saves_and_reloads(name: str, tmp_path: Path) -> None:
    recipe = shrink(name)
    model = build_model(recipe, captions=CAPTIONS)
    images = stored_images(model)
    model.eval()  # no augmentation, so that two losses of the same batch can be compared
    losses = fit(model, build_objective(recipe, recipe.training.phases[0], model=model), images, steps=2)
    assert losses[1] < losses[0]
    with torch.no_grad():
        scores = score(model, images).scores
        again = score(load_model(model.save(tmp_path)), images).scores
    assert torch.equal(scores, again)


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.endswith("flickr8k_grids_cpu")])
def test_method_overfits_32_pairs(name: str) -> None:
    recipe = shrink(name)
    model = build_model(recipe, captions=CAPTIONS).eval()
    images = stored_images(model)
    for phase, steps in ((recipe.training.phases[0], 30), (recipe.training.phases[-1], 120)):
        fit(model, build_objective(recipe, phase), images, steps)
    with torch.no_grad():
        scores = score(model, images).scores
    own = scores.diagonal()
    assert (scores.argmax(dim=1) == torch.arange(PAIRS)).all(), "image to text R@1 is below 100"
    assert (scores.argmax(dim=0) == torch.arange(PAIRS)).all(), "text to image R@1 is below 100"
    assert int((scores >= own.unsqueeze(1)).sum()) == PAIRS
