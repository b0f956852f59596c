"""A batch that is embedded in chunks has the gradient of the whole batch, and keeps the activations of one chunk."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from openvse.errors import RecipeError
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model, build_objective
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.types import Inputs, ScoredBatch
from tests.tiny import read_metrics, tiny_tree, write_tiny_corpus

CAPTIONS = ["red dog runs", "green cat sleeps on the grass", "blue bird", "a man", "two", "red cat on a man", "grass"]


def changed(aggregator: Any, **more: Any) -> dict[str, Any]:
    tree = tiny_tree(Path()) | more
    for side in ("image", "text"):
        tree[side]["aggregator"] = aggregator
    return tree


def gradients(model: TwoTower, tree: dict[str, Any], size: int | None) -> list[Tensor]:
    model = copy.deepcopy(model).train()
    model.chunk_size = size
    generator = torch.Generator().manual_seed(0)
    width = model.image.encoder.feature_dim
    values = torch.randn(len(CAPTIONS), 9, width, dtype=torch.float64, generator=generator)
    mask = torch.rand(len(CAPTIONS), 9, generator=generator) < 0.7
    mask[:, 0] = True
    torch.manual_seed(1)  # the augmentation and dropout of training
    images, texts = model(Inputs(values, mask), model.read_texts(CAPTIONS))
    scored = ScoredBatch(model.similarity(images, texts), torch.eye(len(CAPTIONS), dtype=torch.bool), images, texts)
    build_objective(parse_recipe(tree), model=model)(scored)["loss"].backward()
    return [weight.grad for weight in model.parameters() if weight.requires_grad]


@pytest.mark.medium
@pytest.mark.parametrize("size", [1, 3, 7, 100])
@pytest.mark.parametrize(
    "tree",
    [changed("gpo"), changed("tokens", similarity={"name": "fused", "fusion": "score_attention"})],
    ids=["gpo", "fused"],
)
def test_the_gradient_is_that_of_the_whole_batch(tree: dict[str, Any], size: int) -> None:
    tree["text"]["encoder"] |= {"size_augmentation": "none"}  # each chunk would draw other words to drop
    tree["image"]["encoder"] |= {"augmentation": "none"}
    model = build_model(parse_recipe(tree), captions=CAPTIONS).double()
    whole, chunks = gradients(model, tree, None), gradients(model, tree, size)
    assert any(gradient.abs().max() > 0 for gradient in whole)
    torch.testing.assert_close(chunks, whole)


def test_each_chunk_is_embedded_twice_with_the_same_random_numbers() -> None:
    model = build_model(parse_recipe(changed("gpo")), captions=CAPTIONS).double().train()
    seen: list[Tensor] = []
    model.image.aggregator.register_forward_pre_hook(lambda _, given: seen.append(given[0].mask.clone()))
    model.chunk_size = 3
    values, mask = torch.randn(7, 9, model.image.encoder.feature_dim).double(), torch.ones(7, 9).bool()
    images, _ = model(Inputs(values, mask), model.read_texts(CAPTIONS))
    assert [len(each) for each in seen] == [3, 3, 1]
    images.vectors.sum().backward()
    again = sorted(seen[3:], key=len, reverse=True)
    assert sorted(map(str, seen[:3])) == sorted(map(str, again))
    assert not all(bool(each.all()) for each in seen)


@pytest.mark.medium
def test_a_run_in_chunks_and_its_refusals(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path)
    tree = tiny_tree(corpus, phases=[{"epochs": 2}])
    tree["image"]["encoder"] |= {"augmentation": "none"}
    tree["text"]["encoder"] |= {"size_augmentation": "none"}
    run_recipe(parse_recipe(tree), tmp_path / "whole")
    tree["training"]["chunk_size"] = 3
    run_recipe(parse_recipe(tree), tmp_path / "chunks")
    losses = [
        [record["loss"] for record in read_metrics(tmp_path / name) if record["kind"] == "train"]
        for name in ("whole", "chunks")
    ]
    assert losses[0] and losses[1] == pytest.approx(losses[0], rel=1e-4)
    tree["image"]["encoder"] |= {"projection": "residual_mlp"}
    with pytest.raises(RecipeError, match=r"image\.encoder\.projection\.\S+"):
        run_recipe(parse_recipe(tree), tmp_path / "refused")
