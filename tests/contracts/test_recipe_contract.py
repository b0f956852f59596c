"""What every shipped recipe must hold: it builds, a step lowers the loss, it saves and reloads to equal scores."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from contracts.conftest import Checkpoints, recipes_without_start
from openvse.functional import pad
from openvse.model.two_tower import TwoTower
from openvse.objectives.base import Objective
from openvse.retrieval.build import build_model, build_objective
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.specs.load import list_recipes
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe
from openvse.types import Inputs, ScoredBatch
from tests.failures import Failures

PAIRS = 32
# Words that the tiny tokenizer knows, no two captions of the same ones.
CAPTIONS = [" ".join(words) for words in combinations(("dog", "cat", "runs", "sits", "mat", "red", "two"), 3)][:PAIRS]


def shrink(name: str, checkpoints: Checkpoints) -> RetrievalRecipe:
    """The same recipe at a width that a test can afford, without random drops, its hub models replaced by tiny ones."""
    recipe = load_recipe(name)
    changed = ["embed_dim=32"]
    if recipe.text.encoder.name != "role_graph":
        changed.append("text.encoder.size_augmentation=none")
    if recipe.text.encoder.name == "transformers_text":
        changed.append(f"text.encoder.model={checkpoints.text}")
    else:
        changed.append("text.encoder.min_count=1")
    if recipe.text.encoder.name == "bag_of_words":
        changed.append("text.encoder.word_dim=32")  # the joint space is that of the words
    for key, term in recipe.objective.items():
        if "random" in str(term.options.get("miner")):
            changed.append(f"objective.{key}.miner=all")
        if term.name == "correspondence":
            changed += [f"objective.{key}.embed_dim=32", f"objective.{key}.text_dim=32"]
    for side in ("image", "text"):
        options = getattr(recipe, side).aggregator.options
        changed += [f"{side}.aggregator.{key}=0.0" for key in options if "dropout" in key]
        changed += [f"{side}.aggregator.{key}=16" for key in options if key == "base_dim"]
    if recipe.image.encoder.name == "resnet":
        changed += [
            f"image.encoder.{size}" for size in ("blocks=[1,1,1,1]", "stem_dim=4", "inner_dim=4", "image_size=64")
        ]
        changed.append(f"image.encoder.groups={min(2, recipe.image.encoder.options.get('groups', 1))}")
    inner = recipe.image.encoder.options.get("backbone")
    if isinstance(inner, dict) and "model" in inner:
        changed.append(f"image.encoder.backbone.model={checkpoints.vision('resnet')}")
    if model := recipe.image.encoder.options.get("model"):
        family = "vit" if "vit" in model else "resnet"
        changed += [f"image.encoder.model={checkpoints.vision(family)}", "image.encoder.image_size=null"]
    return load_recipe(name, changed)


def make_images(model: TwoTower) -> Inputs:
    """Pixels for a backbone that trains, of fewer pairs; else ragged local features as wide as the encoder stores."""
    generator = torch.Generator().manual_seed(0)
    if model.image.encoder.fine_tune:
        noise = torch.randint(0, 256, (PAIRS // 4, 64, 64, 3), dtype=torch.uint8, generator=generator).numpy()
        return Inputs(
            torch.stack([model.image.encoder.backbone.preprocess(Image.fromarray(each)) for each in noise]), None
        )
    return pad([torch.randn(4 + n % 6, model.image.encoder.feature_dim, generator=generator) for n in range(PAIRS)])


def score(model: TwoTower, images: Inputs) -> ScoredBatch:
    pairs = len(images.values)
    embedded = model(images, pad(model.text.encoder.tokenize(CAPTIONS[:pairs])))
    return ScoredBatch(model.similarity(*embedded), torch.eye(pairs, dtype=torch.bool), *embedded)


def fit(
    model: TwoTower,
    objective: Objective,
    images: Inputs,
    steps: int,
    learning_rate: float = 1e-3,
    enough: Callable[[Tensor], bool] = lambda _: False,
) -> list[float]:
    """Train for some steps, or until scores are good enough; return the losses."""
    optimizer = torch.optim.AdamW(
        [p for p in (*model.parameters(), *objective.parameters()) if p.requires_grad], lr=learning_rate
    )
    losses = []
    for _ in range(steps):
        scored = score(model, images)
        if enough(scored.scores):
            break
        loss = objective(scored)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


RECIPES = Path(__file__).parents[2] / "recipes"
RETRIEVAL = recipes_without_start()["retrieval"]
QUICK = "vse_infinity/flickr8k_grids_cpu"  # stands for all of them in `make check`
FILES = [
    names
    for file in sorted(RECIPES.rglob("[!_]*.yaml"))
    for own in [list_recipes(str(file))]
    for names in (([name] for name in own) if file.stem == "rows" else [own])
]
FIRST = [max(here, key=QUICK.__eq__) for names in FILES if (here := [n for n in names if n in RETRIEVAL])]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.medium) for name in FIRST]
)
def test_recipe_builds_learns_saves_and_reloads(name: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    recipe = shrink(name, checkpoints)
    model = build_model(recipe, captions=CAPTIONS)
    images = make_images(model)
    model.eval()  # no augmentation, so that two losses of the same batch can be compared
    objective = build_objective(recipe, recipe.training.phases[0], model=model)
    rate = 1e-5 if model.image.encoder.fine_tune else 1e-4  # a whole backbone moves more
    losses = fit(model, objective, images, steps=2, learning_rate=rate)
    assert losses[1] < losses[0]
    with torch.inference_mode():  # a caller may load a model in any mode
        scores = score(model, images).scores
        again = score(load_as(TwoTower, model.save(tmp_path)), images).scores
    assert torch.equal(scores, again)


@pytest.mark.medium
def test_the_other_rows_of_a_file_build(checkpoints: Checkpoints) -> None:
    failures = Failures()
    for name in sorted(set(RETRIEVAL) - set(FIRST)):
        with failures.of(name):
            recipe = shrink(name, checkpoints)
            model = build_model(recipe, captions=CAPTIONS)
            for phase in recipe.training.phases:
                build_objective(recipe, phase, model=model)
    assert not failures, failures


def each_finds_its_own(scores: Tensor) -> bool:
    """Return whether R@1 is 100 in both directions, with no other score as high as a pair's own."""
    own = scores.diagonal()
    return int((scores >= own.unsqueeze(1)).sum()) == int((scores >= own.unsqueeze(0)).sum()) == PAIRS


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in list_recipes() if name.endswith("flickr8k_grids_cpu")])
def test_method_overfits_32_pairs(name: str, checkpoints: Checkpoints) -> None:
    recipe = shrink(name, checkpoints)
    model = build_model(recipe, captions=CAPTIONS).eval()
    images = make_images(model)
    for phase, steps in ((recipe.training.phases[0], 30), (recipe.training.phases[-1], 120)):
        fit(model, build_objective(recipe, phase), images, steps, enough=each_finds_its_own)
    with torch.no_grad():
        scores = score(model, images).scores
    assert each_finds_its_own(scores)
