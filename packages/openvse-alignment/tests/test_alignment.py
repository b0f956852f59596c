"""The parts keep their contracts and equal loops written from the formulas, and the recipes train."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import openvse
from openvse.errors import RecipeError
from openvse.objectives import CRITERIA, MINERS
from openvse.types import EmbeddingSet, Features, ScoredBatch
from openvse_alignment import recipes
from openvse_alignment.blocks import Around, Blocks, CrossCorrelation, near
from openvse_alignment.hard import LocalContrast, MaxSim, SelfAttention
from openvse_alignment.slimming import AttendedShare, PatchSlimming
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


def test_patch_slimming_and_its_gradient_equal_a_loop() -> None:
    torch.manual_seed(0)
    part = PatchSlimming(embed_dim=6, num_patches=9, class_token=True).double()
    images, texts = _set(4, [10, 2, 7, 4], 0), _set(3, [4, 1, 3], 1)

    def score(image: int, text: int) -> Tensor:
        first, *patches = images.vectors[image][images.mask[image]]
        words, x = texts.vectors[text][texts.mask[text]], torch.stack(patches)
        means = [normalize(each.mean(dim=0), dim=0) for each in (x.detach(), words.detach())]
        significance = [float((means[0] + means[1]) @ normalize(each.detach(), dim=0)) for each in patches]
        order = sorted(range(len(x)), key=significance.__getitem__, reverse=True)
        kept, left = order[: math.ceil(len(x) / 2)], order[math.ceil(len(x) / 2) :]
        parts = [first, *((part.merging(x[kept]) * part.scale).softmax(dim=0).T @ x[kept])]
        if left:
            parts.append(torch.tensor(significance)[left].double().softmax(dim=0) @ x[left])
        cosines = normalize(torch.stack(parts), dim=-1) @ normalize(words, dim=-1).T
        cosines = torch.where(cosines < 0, 0.1 * cosines, cosines)
        return cosines.amax(dim=0).mean() + cosines.amax(dim=1).mean()

    images, texts = (EmbeddingSet(2 * each.vectors.requires_grad_(), each.mask) for each in (images, texts))
    learned = [images.vectors, texts.vectors, *part.parameters()]
    scores = part(images, texts)
    expected = torch.stack([torch.stack([score(i, t) for t in range(3)]) for i in range(4)])
    torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-6)
    weights = torch.randn(4, 3, dtype=torch.float64)
    for own, wanted in zip(
        torch.autograd.grad((scores * weights).sum(), learned),
        torch.autograd.grad((expected * weights).sum(), learned),
        strict=True,
    ):
        torch.testing.assert_close(own, wanted, rtol=1e-6, atol=1e-6)
    attended = part.attended(images, texts, torch.tensor([0]), torch.tensor([1]))
    assert attended[0][0, 0].sort().values.tolist() == [0.0] * 5 + [0.2] * 5  # 5 of 9 patches, not the class token
    batch = ScoredBatch(scores, scores > 9, images, texts, partial(part.attended, images, texts))
    shares = sum(math.ceil(n / 2) / n for n in (9, 1, 6, 3)) / 4
    torch.testing.assert_close(float(AttendedShare(class_token=True)(batch)), (shares - 0.5) ** 2)


def test_local_contrast_is_the_hinge_of_local_scores() -> None:
    local = [_set(2, [2, 2], seed) for seed in (0, 1)]
    images, texts = (EmbeddingSet.full(torch.zeros(2, 1, 6, dtype=torch.float64)) for _ in range(2))
    batch = ScoredBatch(
        torch.zeros(2, 2),
        torch.eye(2, dtype=torch.bool),
        replace(images, local=local[0]),
        replace(texts, local=local[1]),
    )
    (a, b), (c, d) = MaxSim(reduction="mean")(*local).tolist()
    expected = sum(max(0.0, 0.2 + each) for each in (b - a, c - a, c - d, b - d))
    term = LocalContrast(miner=MINERS.get("all")(), criterion=CRITERIA.get("hinge")(margin=0.2))
    torch.testing.assert_close(float(term(batch)), expected)
    assert float(term.diagnostics(batch).get("i2t_hardest", torch.zeros(()))) == 0.0
    wide = replace(batch, texts=replace(texts, local=EmbeddingSet.full(torch.zeros(2, 1, 5))))
    with pytest.raises(RecipeError, match="6 wide of images and 5 wide of texts"):
        term(wide)


def test_around_keeps_the_cells_nearest_to_a_drawn_one() -> None:
    part, mask = Around(share=0.5), torch.ones(1, 9, dtype=torch.bool)
    corners = [(column / 4, row / 4) for row in range(3) for column in range(3)]
    boxes = torch.tensor([[[x, y, x + 0.25, y + 0.25] for x, y in corners]])
    views = set()
    for seed in range(100):
        torch.manual_seed(seed)
        views.add(tuple(part(mask, boxes)[0].nonzero()[:, 0].tolist()))
    # Each view is a drawn cell and three near ones. Of cells at the same distance, the first ones are taken.
    assert views == {
        *((0, 1, 3, 4), (0, 1, 2, 4), (1, 2, 4, 5), (0, 3, 4, 6), (1, 3, 4, 5), (2, 4, 5, 8)),
        *((3, 4, 6, 7), (4, 6, 7, 8), (4, 5, 7, 8)),
    }
    assert part(mask).all() and part.eval()(mask, boxes).all()


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


def _small_vit(folder: Path) -> Path:
    """Write a ViT of 9 patches with random weights."""
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    ViTModel(ViTConfig(image_size=48, patch_size=16, **size)).save_pretrained(folder)
    ViTImageProcessor(size={"height": 48, "width": 48}).save_pretrained(folder)
    return folder


@pytest.mark.medium
@pytest.mark.parametrize(
    ("recipe", "options", "indexable"),
    [
        ("chan/folder_cpu", [], False),
        ("avse/folder_cpu", ["image.encoder.augmentation=around"], True),
        ("laps/folder_cpu", ["objective.share={name: attended_share, weight: 2}"], False),
        ("laps/folder_finetuned_cpu", ["image.encoder.model=VIT", "similarity.num_patches=9"], False),
        ("vse_infinity/folder_cpu", ["objective.local={name: local_contrast, miner: all, criterion: hinge}"], True),
    ],
)
def test_a_recipe_trains_on_a_folder(
    recipe: str, options: list[str], indexable: bool, album: Path, tmp_path: Path
) -> None:
    words = ("embed_dim=16", "text.encoder.word_dim=8", "training.phases=[{epochs: 1}]", "training.batch_size=8")
    if "image.encoder.model=VIT" in options:
        images = [f"image.encoder.model={_small_vit(tmp_path / 'vit')}"]
    else:
        images = ["image.encoder.pretrained=false", "image.encoder.image_size=64"]
    run = openvse.train(recipe, album, tmp_path / "run", [*options, *images, *words])
    model = openvse.load(run.best)
    assert model.indexable is indexable
    ours = model.encode_image(album / "0.png")
    assert ours.local is None and ours.unscaled is None
