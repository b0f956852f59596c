"""The machinery that image encoders share, on a backbone small enough to read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from openvse.encoders.image_encoder import LocalFeatureEncoder
from openvse.encoders.precomputed import Precomputed
from openvse.errors import ModelError, RecipeError
from openvse.types import Inputs


class Cells(LocalFeatureEncoder):
    """Four cells of width 5 from 8 x 8 pixels, with a BatchNorm in between."""

    def __init__(
        self, *, fine_tune: bool = False, size_augmentation: str = "none", projection: str = "linear"
    ) -> None:
        super().__init__(
            backbone=nn.Sequential(nn.Conv2d(3, 5, 4, stride=4), nn.BatchNorm2d(5), nn.Dropout(0.5)),
            feature_dim=5,
            fingerprint="cells:8",
            embed_dim=6,
            projection=projection,
            size_augmentation=size_augmentation,
            augmentation_rate=0.5,
            fine_tune=fine_tune,
            pooled=False,
        )

    def preprocess(self, image, generator=None):
        raise NotImplementedError

    def extract(self, pixels):
        return self.backbone(pixels).flatten(2).transpose(1, 2)


def stored(width: int = 5) -> Inputs:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    return Inputs(torch.randn(2, 3, width), mask)


def test_pixels_go_through_the_backbone_and_stored_features_do_not() -> None:
    encoder = Cells().eval()
    pixels = torch.randn(2, 3, 8, 8)
    from_pixels = encoder(Inputs(pixels, None))
    assert from_pixels.local.shape == (2, 4, 6) and from_pixels.mask.all()
    from_store = encoder(Inputs(encoder.extract(pixels), torch.ones(2, 4, dtype=torch.bool)))
    torch.testing.assert_close(from_pixels.local, from_store.local)


def test_a_frozen_backbone_stays_out_of_training() -> None:
    encoder = Cells()
    assert encoder.training and not any(module.training for module in encoder.backbone.modules())
    encoder.eval().train()
    assert not any(module.training for module in encoder.backbone.modules())
    encoder(Inputs(torch.randn(2, 3, 8, 8), None)).local.sum().backward()
    assert all(not p.requires_grad and p.grad is None for p in encoder.backbone.parameters())
    assert encoder.projection.linear.weight.grad is not None


def test_a_frozen_backbone_builds_no_graph_even_if_someone_thaws_it() -> None:
    encoder = Cells()
    encoder.requires_grad_(True)
    encoder(Inputs(torch.randn(2, 3, 8, 8), None)).local.sum().backward()
    assert all(p.grad is None for p in encoder.backbone.parameters())


def test_fine_tuning_reaches_the_backbone_but_not_its_statistics() -> None:
    encoder = Cells(fine_tune=True)
    before = encoder.backbone[1].running_mean.clone()
    encoder(Inputs(torch.randn(2, 3, 8, 8) + 3, None)).local.sum().backward()
    assert all(p.grad is not None for p in encoder.backbone.parameters())
    assert encoder.backbone[2].training and torch.equal(encoder.backbone[1].running_mean, before)
    with torch.no_grad():
        assert not encoder(Inputs(torch.randn(2, 3, 8, 8), None)).local.requires_grad


def test_the_fingerprint_tells_fine_tuned_features_apart() -> None:
    assert Cells().fingerprint == "cells:8"
    assert Cells(fine_tune=True).fingerprint == "cells:8:fine_tuned"


def test_augmentation_shrinks_the_mask_in_training_only() -> None:
    torch.manual_seed(0)
    encoder = Cells(size_augmentation="region")
    pixels = Inputs(torch.randn(64, 3, 8, 8), None)
    share = encoder(pixels).mask.float().mean().item()
    assert 0.4 < share < 0.65  # half, and never an empty item
    assert encoder.eval()(pixels).mask.all()


def test_dropped_features_stay_where_they_are() -> None:
    encoder = Cells(size_augmentation="region")
    batch = stored()
    features = encoder(batch)
    assert features.local.shape == (2, 3, 6)
    torch.testing.assert_close(features.local, encoder.projection(batch.values, batch.mask))


def test_without_projection_the_raw_width_stays() -> None:
    encoder = Cells(projection="none")
    assert encoder.local_dim == 5
    assert Cells().local_dim == 6


def test_stored_features_of_another_width_are_refused() -> None:
    with pytest.raises(
        ModelError, match="stored features are 7 wide, this encoder expects 5: extract them again"
    ):
        Cells()(stored(width=7))


def test_fine_tuning_on_stored_features_is_refused_but_evaluation_is_not() -> None:
    encoder = Cells(fine_tune=True)
    with pytest.raises(ModelError, match="fine_tune needs pictures"):
        encoder(stored())
    assert encoder.eval()(stored()).local.shape == (2, 3, 6)


def test_an_unknown_projection_is_refused() -> None:
    with pytest.raises(RecipeError, match="unknown projection 'mlp'"):
        Cells(projection="mlp")


def test_precomputed_defaults_are_those_for_regions() -> None:
    encoder = Precomputed(embed_dim=6, feature_dim=5)
    assert (encoder.feature_dim, encoder.local_dim, encoder.fingerprint) == (5, 6, None)
    assert encoder.augmentation.mode == "region"
    assert encoder.projection.mlp[1].num_features == 3
    assert encoder(stored()).local.shape == (2, 3, 6)


def test_precomputed_cannot_read_pictures(make_photos) -> None:
    from PIL import Image

    encoder = Precomputed(embed_dim=6, feature_dim=5)
    with pytest.raises(ModelError, match="cannot read pictures: give stored features"):
        encoder(Inputs(torch.zeros(1, 3, 8, 8), None))
    with pytest.raises(ModelError, match="cannot read pictures"):
        encoder.preprocess(Image.open(make_photos(1)[0]))
