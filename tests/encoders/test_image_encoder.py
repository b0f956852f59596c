"""The machinery that image encoders share, on a backbone small enough to read."""

from functools import partial
from typing import Any

import torch
from torch import nn

from openvse.backbones import Backbone
from openvse.backbones.base import cells
from openvse.encoders import ImageEncoder
from openvse.encoders.augmentations import AUGMENTATIONS, RegionAugmentation
from openvse.encoders.projections import PROJECTIONS
from openvse.errors import ModelError, RecipeError
from openvse.types import Inputs
from tests.naming import names, refusal
from tests.seeing import image_encoder, see


class Cells(Backbone):
    """Four cells of width 5 from 8 x 8 pixels, with a BatchNorm in between."""

    def __init__(self, *, fine_tune: bool = False) -> None:
        network = nn.Sequential(nn.Conv2d(3, 5, 4, stride=4), nn.BatchNorm2d(5), nn.Dropout(0.5))
        super().__init__(network, feature_dim=5, fingerprint="cells:8", fine_tune=fine_tune)

    def preprocess(self, image):
        raise NotImplementedError

    def see(self, inputs):
        return cells(self.net(inputs.values))


def encoder_of_cells(*, fine_tune: bool = False, augmentation: str = "none", **parts: Any) -> ImageEncoder:
    options = {"rate": 0.5} if augmentation != "none" else {}
    hiding = partial(AUGMENTATIONS.get(augmentation), **options)
    return ImageEncoder(backbone=Cells(fine_tune=fine_tune), embed_dim=6, augmentation=hiding, **parts)


def stored(width: int = 5) -> Inputs:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    return Inputs(torch.randn(2, 3, width), mask)


def test_pixels_go_through_the_backbone_and_stored_features_do_not() -> None:
    encoder = encoder_of_cells().eval()
    pixels = torch.randn(2, 3, 8, 8)
    from_pixels = encoder(Inputs(pixels, None))
    assert from_pixels.local.shape == (2, 4, 6) and from_pixels.mask.all()
    from_store = encoder(Inputs(see(encoder.backbone, pixels), torch.ones(2, 4, dtype=torch.bool)))
    torch.testing.assert_close(from_pixels.local, from_store.local)


def test_a_frozen_backbone_stays_out_of_training() -> None:
    encoder = encoder_of_cells()
    assert encoder.training and not any(module.training for module in encoder.backbone.modules())
    encoder.eval().train()
    assert not any(module.training for module in encoder.backbone.modules())
    encoder(Inputs(torch.randn(2, 3, 8, 8), None)).local.sum().backward()
    assert all(not p.requires_grad and p.grad is None for p in encoder.backbone.parameters())
    assert encoder.projection.linear.weight.grad is not None


def test_fine_tuning_reaches_the_backbone_but_not_its_statistics() -> None:
    encoder = encoder_of_cells(fine_tune=True)
    before = encoder.backbone.net[1].running_mean.clone()
    encoder(Inputs(torch.randn(2, 3, 8, 8) + 3, None)).local.sum().backward()
    assert all(p.grad is not None for p in encoder.backbone.parameters())
    assert encoder.backbone.net[2].training and torch.equal(encoder.backbone.net[1].running_mean, before)
    with torch.no_grad():
        assert not encoder(Inputs(torch.randn(2, 3, 8, 8), None)).local.requires_grad


def test_augmentation_shrinks_the_mask_in_training_only() -> None:
    torch.manual_seed(0)
    encoder = encoder_of_cells(augmentation="region")
    pixels = Inputs(torch.randn(64, 3, 8, 8), None)
    share = encoder(pixels).mask.float().mean().item()
    assert 0.4 < share < 0.65  # half, and never an empty item
    assert encoder.eval()(pixels).mask.all()


def test_dropped_features_stay_where_they_are() -> None:
    encoder = encoder_of_cells(augmentation="region")
    batch = stored()
    features = encoder(batch)
    assert features.local.shape == (2, 3, 6)
    torch.testing.assert_close(features.local, encoder.projection(batch.values, batch.mask))


def test_without_projection_the_raw_width_stays() -> None:
    assert encoder_of_cells(projection=PROJECTIONS.get("none")).local_dim == 5
    assert encoder_of_cells().local_dim == 6


def test_stored_features_of_another_width_are_refused() -> None:
    assert names(refusal(ModelError, lambda: encoder_of_cells()(stored(width=7))), "7 ", "5")


def test_an_image_without_features_is_refused_and_half_precision_is_read() -> None:
    encoder, inputs = encoder_of_cells().eval(), stored()
    half = Inputs(inputs.values.half(), inputs.mask)
    expected = encoder(Inputs(half.values.float(), inputs.mask)).local
    assert torch.equal(encoder(half).local, expected) and expected.dtype == torch.float32
    refusal(ModelError, lambda: encoder(Inputs(inputs.values, inputs.mask & torch.tensor([[True], [False]]))))
    refusal(ModelError, lambda: encoder(Inputs(inputs.values[:, :0], inputs.mask[:, :0])))


def test_fine_tuning_on_stored_features_is_refused_but_evaluation_is_not() -> None:
    encoder = encoder_of_cells(fine_tune=True)
    assert names(refusal(ModelError, lambda: encoder(stored())), "fine_tune")
    assert encoder.eval()(stored()).local.shape == (2, 3, 6)


def test_an_unknown_projection_is_refused() -> None:
    assert names(refusal(RecipeError, image_encoder, "precomputed", feature_dim=5, projection="mlp"), "'mlp'")


def test_precomputed_defaults_are_those_for_regions() -> None:
    encoder = image_encoder("precomputed", embed_dim=6, feature_dim=5)
    assert (encoder.feature_dim, encoder.local_dim, encoder.fingerprint) == (5, 6, None)
    assert type(encoder.augmentation) is RegionAugmentation
    assert encoder.projection.mlp[1].num_features == 3
    assert encoder(stored()).local.shape == (2, 3, 6)


def test_precomputed_cannot_read_images(make_photos) -> None:
    from PIL import Image

    encoder = image_encoder("precomputed", embed_dim=6, feature_dim=5)
    assert names(refusal(ModelError, lambda: encoder(Inputs(torch.zeros(1, 3, 8, 8), None))), "'precomputed'")
    assert names(refusal(ModelError, encoder.backbone.preprocess, Image.open(make_photos(1)[0])), "'precomputed'")
