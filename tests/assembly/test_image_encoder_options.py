"""One mapping for a backbone and the encoder around it: whose key it is, and faults."""

from __future__ import annotations

from typing import Any

import torch

from openvse.assembly.parts import build_image_encoder
from openvse.backbones import Precomputed
from openvse.encoders.augmentations import GridAugmentation, NoAugmentation, RegionAugmentation
from openvse.encoders.projections import BiGRUVector, LinearProjection, MeanVector, ResidualMLP
from openvse.errors import RecipeError
from openvse.specs.model import Part
from tests.failures import Failures
from tests.naming import names, refusal
from tests.seeing import image_encoder

SMALL = {"pretrained": False, "image_size": 32}


def build(**options: Any) -> Any:
    torch.manual_seed(0)
    return image_encoder("precomputed", embed_dim=4, feature_dim=6, **options)


def test_each_gets_its_own_options() -> None:
    encoder = build(num_frames=3, projection="linear", augmentation={"name": "grid", "rate": 0.4})
    assert isinstance(encoder.backbone, Precomputed) and encoder.backbone.frame_limit.num_frames == 3
    assert isinstance(encoder.projection, LinearProjection)
    assert isinstance(encoder.augmentation, GridAugmentation) and encoder.augmentation.rate == 0.4
    assert encoder.global_projection is None and not encoder.gives_pooled


def test_the_backbone_says_what_usually_follows_it() -> None:
    stored, grid = build(), image_encoder("efficientnet_lite0", **SMALL)
    clips = image_encoder("frames", backbone={"name": "efficientnet_lite0", **SMALL})
    assert isinstance(stored.projection, ResidualMLP) and type(stored.augmentation) is RegionAugmentation
    assert isinstance(grid.projection, LinearProjection) and type(grid.augmentation) is GridAugmentation
    assert isinstance(clips.projection, LinearProjection) and type(clips.augmentation) is NoAugmentation


def test_the_two_global_vectors() -> None:
    assert isinstance(build(global_vector="mean").global_projection, MeanVector)
    last = build(global_vector={"name": "bigru", "at_last": True}).global_projection
    assert isinstance(last, BiGRUVector) and last.at_last


def test_a_fault_is_where_the_recipe_has_it() -> None:
    failures = Failures()
    for options, named in [
        ({"imge_size": 3}, (".imge_size", "'image_size'", "openvse list parts efficientnet_lite0", 10)),
        ({"augmentatio": "grid"}, (".augmentatio", "'augmentation'")),
        ({"embed_dim_": 3}, (".embed_dim_",)),
        ({"image_size": "big"}, (".image_size:", "'big'")),
        ({"image_size": 8}, (":", "image_size", 8)),
        ({"projection": "mlp"}, (".projection:", "'mlp'")),
        ({"projection": {"name": "linear", "x": 1}}, (".projection.x",)),
        ({"augmentation": "gridd"}, (".augmentation:", "'gridd'")),
        ({"augmentation": {"name": "grid", "rate": 2}}, (".augmentation:", "rate", 2.0)),
        ({"global_vector": "gru"}, (".global_vector:", "'gru'")),
        ({"global_vector": "bigru", "embed_dim": 7}, (".global_vector:", "bigru", "embed_dim", 7)),
    ]:
        with failures.of(options):
            refused = refusal(RecipeError, image_encoder, "efficientnet_lite0", **(SMALL | options))
            assert names(refused, f"image.encoder{named[0]}", *named[1:]), refused
    assert not failures, failures


def test_an_unknown_backbone_names_the_nearest() -> None:
    assert names(refusal(RecipeError, image_encoder, "resnett"), "image.encoder", "'resnett'", "'resnet'")


def test_context_cannot_be_set() -> None:
    for key in ("assets", "backbone", "embed_dim"):
        part = Part(name="precomputed", feature_dim=3, **{key: 1})
        assert names(refusal(RecipeError, build_image_encoder, part, 4, None), f"image.encoder.{key}")
