"""What every shipped recipe with a start must hold: it begins at the start's scores, learns, saves and reloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from openvse.backbones.fine_tuning import adapt
from openvse.conversion.convert import convert
from openvse.functional import pad
from openvse.model.start import Start
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model, build_objective
from openvse.specs.load import list_recipes, read_recipe
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe
from openvse.training.optimizer import build_optimizer, freeze
from openvse.types import Inputs, ScoredBatch
from tests.conftest import draw_photo
from tests.dual_checkpoints import WORDS, save_dual

PAIRS = 6
CAPTIONS = [" ".join((WORDS[n], WORDS[n + 1], WORDS[-n - 3])) for n in range(PAIRS)]
STARTING = [name for name in list_recipes() if isinstance(read_recipe(name).get("start"), str)]
pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def start_of(tmp_path_factory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("starts")

    def make(family: str) -> Path:
        folder = root / "models" / family
        if not folder.exists():
            convert(save_dual(family, root / family), folder)
        return folder

    return make


def score(model: TwoTower, images: Inputs) -> ScoredBatch:
    """Score photos and captions; where towers are frozen, from the tokens that a store holds."""
    texts = pad(model.text.encoder.tokenize(CAPTIONS))
    if not model.text.encoder.fine_tune:
        with torch.no_grad():
            stored = model.text.encoder.token_states(texts)
        texts = Inputs(stored.local, stored.mask)
    if not model.image.encoder.fine_tune:
        with torch.no_grad():
            seen = model.image.encoder.local_features(images)
        images = Inputs(seen.local, seen.mask)
    embedded = model(images, texts)
    return ScoredBatch(model.similarity(*embedded), torch.eye(PAIRS, dtype=torch.bool), *embedded)


@pytest.mark.parametrize("name", STARTING)
def test_recipe_begins_at_its_start_learns_saves_and_reloads(
    name: str, start_of: Callable[[str], Path], tmp_path: Path
) -> None:
    if "lora" in name:
        pytest.importorskip("peft")
    family = "siglip" if name.startswith("siglip") else "clip"
    recipe = load_recipe(name, [f"start={start_of(family)}"])
    start = load_as(TwoTower, start_of(family))
    model = build_model(recipe, start=(begun := Start("start", start, start_of(family))))
    begun.give(model)
    adapt(model)
    model.eval()
    images = model.image.encoder.backbone.collate(
        [model.image.encoder.backbone.preprocess(draw_photo(n)) for n in range(PAIRS)]
    )
    if recipe.similarity.name == "csd":  # its heads begin anew, on the towers of the start
        theirs = start.image.encoder.backbone.state_dict()
        for key, weight in model.image.encoder.backbone.state_dict().items():
            assert torch.equal(weight, theirs[key])
    else:
        with torch.no_grad():
            torch.testing.assert_close(score(model, images).scores, score(start, images).scores, atol=1e-6, rtol=0)
    if not recipe.training.phases:  # its closed form is tested by itself
        return
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    optimizer = build_optimizer(recipe.optimizer, named)
    losses = []
    for phase in recipe.training.phases[:2]:
        objective = build_objective(recipe, phase, model=model)
        freeze(named, phase.frozen)
        for _ in range(2):
            loss = objective(score(model, images))["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0]
    with torch.inference_mode():
        scores = score(model, images).scores
        again = score(load_as(TwoTower, model.save(tmp_path / "model")), images).scores
    assert not torch.equal(scores, score(start, images).scores)
    torch.testing.assert_close(again, scores, rtol=0, atol=1e-5 if "lora" in name else 0)
