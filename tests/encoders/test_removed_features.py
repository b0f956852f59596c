"""Hidden features that are removed: rows of zeros up to the largest kept set count, as in the released code."""

from functools import partial

import torch
from torch import Tensor

from openvse.aggregators.learned import AdPool
from openvse.backbones import Precomputed
from openvse.encoders.augmentations import RegionAugmentation
from openvse.encoders.image_encoder import ImageEncoder
from openvse.encoders.projections import ResidualMLP
from openvse.types import Inputs


def encoder(*, removes: bool, count_padding: bool = True) -> ImageEncoder:
    torch.manual_seed(0)
    return ImageEncoder(
        backbone=Precomputed(feature_dim=5),
        embed_dim=6,
        projection=partial(ResidualMLP, count_padding=count_padding),
        augmentation=partial(RegionAugmentation, rate=0.4, removes=removes),
    ).double()


def regions() -> Inputs:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([7, 4, 6])
    values = torch.randn(3, 7, 5, generator=generator, dtype=torch.float64)
    mask = torch.arange(7) < lengths.unsqueeze(1)
    return Inputs(values.masked_fill(~mask.unsqueeze(-1), 0), mask)


def released(module: ResidualMLP, images: list[Tensor]) -> list[Tensor]:
    """Return the projection of each image in a loop: the rows that are kept, then zeros up to the largest set."""
    longest = max(map(len, images))
    rows = [row for image in images for row in [*image, *[torch.zeros(5).double()] * (longest - len(image))]]
    first, norm, _, last = module.mlp
    hidden = [first.weight @ row + first.bias for row in rows]
    mean = sum(hidden) / len(hidden)
    variance = sum((each - mean) ** 2 for each in hidden) / len(hidden)
    out = []
    for row, each in zip(rows, hidden, strict=True):
        scaled = (each - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias
        out.append(module.linear.weight @ row + module.linear.bias)
        out[-1] = out[-1] + last.weight @ scaled.clamp(min=0) + last.bias
    return [torch.stack(out[start : start + longest]) for start in range(0, len(out), longest)]


def test_the_projection_counts_zeros_up_to_the_largest_kept_set() -> None:
    module, images = encoder(removes=True), regions()
    torch.manual_seed(3)
    seen = module(images)
    torch.manual_seed(3)
    kept = module.augmentation(images.mask)
    assert (kept != images.mask).sum() > 0
    chosen = [values[mask] for values, mask in zip(images.values, kept, strict=True)]
    assert seen.local.shape[1] == max(map(len, chosen)) < 7
    assert seen.mask.sum(dim=1).tolist() == kept.sum(dim=1).tolist()
    expected = released(module.projection, chosen)
    for item, row in enumerate(expected):
        torch.testing.assert_close(seen.local[item], row, rtol=0, atol=5e-8)
    running = module.projection.mlp[1].running_mean.clone()
    other = encoder(removes=False)
    torch.manual_seed(3)
    other(images)
    assert (running - other.projection.mlp[1].running_mean).abs().max() > 1e-3


def test_adpool_counts_the_largest_kept_set() -> None:
    module, images = encoder(removes=True), regions()
    torch.manual_seed(3)
    seen = module(images)
    pool = AdPool(input_dim=6, embed_dim=6, count_padding=True, balance=1.0).double()
    pooled = pool.pool(seen.local, seen.mask)
    for item in range(3):
        rows = seen.local[item][seen.mask[item]].sort(dim=0, descending=True).values
        ranked = torch.cat([rows, rows.new_zeros(seen.mask.shape[1] - len(rows), 6)])
        weights = torch.softmax(torch.stack([pool.token(row) for row in ranked]), dim=0)
        torch.testing.assert_close(pooled[item], (weights * ranked).sum(dim=0), rtol=0, atol=5e-8)


def test_nothing_else_changes() -> None:
    images = regions()
    found = []
    for removes in (False, True):
        module = encoder(removes=removes, count_padding=False)
        torch.manual_seed(3)
        seen = module(images)
        found.append((seen.local[seen.mask], module.projection.mlp[1].running_mean))
        assert module.eval()(images).local.shape[1] == 7
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)
