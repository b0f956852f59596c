"""Backbones turn images and clips into pixels, and pixels into local features."""

from __future__ import annotations

from openvse.backbones.base import Backbone, cells
from openvse.backbones.crops import Crops
from openvse.backbones.efficientnet_lite import EfficientNetLite0, EfficientNetLite2
from openvse.backbones.frames import Frames
from openvse.backbones.precomputed import Precomputed
from openvse.backbones.resnet import ResNet
from openvse.backbones.timm_vision import TimmVision
from openvse.backbones.transformers_vision import TransformersVision
from openvse.registry import Registry

BACKBONES: Registry[Backbone] = Registry(
    "backbone",
    {
        "crops": Crops,
        "efficientnet_lite0": EfficientNetLite0,
        "efficientnet_lite2": EfficientNetLite2,
        "frames": Frames,
        "precomputed": Precomputed,
        "resnet": ResNet,
        "timm_vision": TimmVision,
        "transformers_vision": TransformersVision,
    },
)

__all__ = ["BACKBONES", "Backbone", "EfficientNetLite0", "cells"]
