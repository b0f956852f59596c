"""The parts keep their contracts and equal loops written from the formulas, and the recipes train."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

import openvse
from openvse.errors import RecipeError
from openvse.types import EmbeddingSet, Features, ScoredBatch
from openvse_alignment import recipes
from openvse_alignment.blocks import Blocks, CrossCorrelation, near
from openvse_alignment.hard import MaxSim, SelfAttention
from openvse_testing import check_part


@pytest.mark.parametrize(
    ("kind", "part", "options"),
    [
        ("similarity", "max_sim", {}),
        ("similarity", "max_sim", {"reduction": "mean"}),
        ("similarity", "max_sim", {"reduction": "sum"}),
        ("projection", "self_attention", {"num_heads": 5}),
        ("aggregator", "blocks", {"pool": "k_max", "projection": "residual_mlp"}),
        ("aggregator", "blocks", {"num_views": 2, "share": 0.6, "class_token": True, "layer_norm": True}),
        ("objective_term", "cross_correlation", {"num_views": 3}),
        ("objective_term", "local_contrast", {"miner": "all"}),
        ("objective_term", "attended_share", {}),
        ("augmentation", "around", {"share": 0.4}),
        ("similarity", "patch_slimming", {"num_patches": 9}),
        ("similarity", "patch_slimming", {"num_patches": 9, "keep": 0.3, "class_token": True}),
        ("recipes", recipes, {}),
    ],
)
def test_they_keep_their_contracts(kind: str, part: object, options: dict[str, object]) -> None:
    check_part(kind, part, options=options)


def _set(items: int, sizes: list[int], seed: int) -> EmbeddingSet:
    generator = torch.Generator().manual_seed(seed)
    vectors = normalize(torch.randn(items, max(sizes), 6, dtype=torch.float64, generator=generator), dim=-1)
    return EmbeddingSet(vectors, torch.arange(max(sizes)) < torch.tensor(sizes).unsqueeze(1))


def test_max_sim_and_its_gradient_equal_a_loop_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    images, texts = _set(5, [4, 1, 3, 4, 2], 0), _set(3, [2, 5, 1], 1)

    def score(reduction: str, image: int, text: int) -> Tensor:
        best = []
        for word in texts.vectors[text][texts.mask[text]]:
            best.append(max((region @ word for region in images.vectors[image][images.mask[image]]), key=Tensor.item))
        if reduction == "lse":
            return sum((each / 0.1).exp() for each in best).log()  # type: ignore[union-attr]
        return sum(best) / (len(best) if reduction == "mean" else 1)  # type: ignore[return-value]

    monkeypatch.setattr("openvse_alignment.hard._PRODUCTS", 64)  # two images at a time
    weights = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for reduction in ("lse", "mean", "sum"):
        sides = [images.vectors.requires_grad_(), texts.vectors.requires_grad_()]
        scores = MaxSim(reduction=reduction)(images, texts)  # type: ignore[arg-type]
        expected = torch.stack([torch.stack([score(reduction, i, t) for t in range(3)]) for i in range(5)])
        torch.testing.assert_close(scores, expected)
        for own, wanted in zip(
            torch.autograd.grad((scores * weights).sum(), sides),
            torch.autograd.grad((expected * weights).sum(), sides),
            strict=True,
        ):
            torch.testing.assert_close(own, wanted)


def test_self_attention_equals_a_loop() -> None:
    torch.manual_seed(0)
    part = SelfAttention(input_dim=3, embed_dim=4, num_heads=2).double()
    local, mask = torch.randn(1, 3, 3, dtype=torch.float64), torch.tensor([[True, True, False]])
    rows = part.linear(local[0, :2])
    query, key, value = (part.norm(rows) @ part.attention.in_proj_weight.T + part.attention.in_proj_bias).chunk(3, -1)
    for place in range(2):
        read = []
        for head in (slice(0, 2), slice(2, 4)):
            weights = torch.stack([query[place, head] @ key[other, head] / math.sqrt(2) for other in range(2)]).exp()
            read.append(sum(w * value[n, head] for n, w in enumerate(weights / weights.sum())))
        expected = rows[place] + part.attention.out_proj(torch.cat(read))  # type: ignore[arg-type]
        torch.testing.assert_close(part(local, mask)[0, place], expected)


def test_a_view_has_the_cells_around_its_centre() -> None:
    mask = torch.ones(1, 10, dtype=torch.bool)  # a class token and 3 x 3 cells
    view = near(mask, torch.tensor([9]), torch.tensor([[0.0, 1.0]]), torch.tensor([4.0]), 1)
    assert view[0].nonzero()[:, 0].tolist() == [0, 1, 2, 3, 5]
    part = Blocks(input_dim=4, embed_dim=4, num_views=2, class_token=True)
    torch.manual_seed(0)
    assert [int(view.sum()) for view in part.train().views(mask)] == [9, 9]  # 80 % of 10 cells, and the class token
    first, second = (view[0].tolist() for view in part.eval().views(mask))
    assert first == [True] * 10 == second  # 90 % of 10
    with pytest.raises(RecipeError, match="above 0 up to 1"):
        Blocks(input_dim=4, embed_dim=4, share=0.0)


def test_blocks_are_pieces_of_each_unit_view() -> None:
    part = Blocks(input_dim=3, embed_dim=2, num_blocks=2, num_views=2, share=0.5, pool=openvse.aggregators.Mean)
    part = part.double().eval()
    local, mask = torch.randn(1, 9, 3, dtype=torch.float64), torch.ones(1, 9, dtype=torch.bool)
    embedded = part(Features(local, mask))
    for view, centre in enumerate(((0.5, 0.5), (1.5, 1.5))):
        by_distance = sorted(range(9), key=lambda cell: math.dist(divmod(cell, 3), centre))
        pooled = torch.stack([part.projection.linear(local[0, cell]) for cell in by_distance[:4]]).mean(dim=0)
        torch.testing.assert_close(embedded.vectors[0, 2 * view : 2 * view + 2].flatten(), pooled / pooled.norm())


def test_cross_correlation_equals_a_loop() -> None:
    blocks = torch.randn(3, 4, 2, dtype=torch.float64)
    left, right = blocks[:, :2].flatten(1), blocks[:, 2:].flatten(1)
    expected = torch.zeros((), dtype=torch.float64)
    for d in range(4):
        for e in range(4):
            c = left[:, d] @ right[:, e] / (left[:, d].norm() * right[:, e].norm() * 3)
            expected += (c - 1) ** 2 if d == e else 0.0051 * c**2
    sides = replace(EmbeddingSet.full(normalize(blocks, dim=-1)), unscaled=blocks), EmbeddingSet.full(blocks)
    batch = ScoredBatch(torch.zeros(3, 3), torch.eye(3, dtype=torch.bool), *sides)
    torch.testing.assert_close(CrossCorrelation()(batch), expected)
    with pytest.raises(RecipeError, match="an image has 4 embedding"):
        CrossCorrelation(num_views=3)(batch)


@pytest.mark.medium
@pytest.mark.parametrize("method", ["chan", "avse"])
def test_its_recipe_trains_on_a_folder(method: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 40, 40, 3), dtype=np.uint8)
    entries = []
    for place, each in enumerate(pixels):
        Image.fromarray(each).save(tmp_path / f"{place}.png")
        split = ("train", "train", "train", "validation", "test")[place % 5]
        entries.append(json.dumps({"file_name": f"{place}.png", "captions": [f"picture {place}"], "split": split}))
    (tmp_path / "metadata.jsonl").write_text("\n".join(entries) + "\n")
    words = ("embed_dim=16", "text.encoder.word_dim=8", "training.phases=[{epochs: 1}]", "training.batch_size=8")
    images = ("image.encoder.pretrained=false", "image.encoder.image_size=64")
    run = openvse.train(f"{method}/folder_cpu", tmp_path, tmp_path / "run", [*images, *words])
    assert openvse.load(run.best).indexable is (method == "avse")
