"""Backbones turn images and clips into pixels, and pixels into local features."""

from __future__ import annotations

from openvse.backbones.base import Backbone, Precomputed, cells
from openvse.backbones.efficientnet_lite import EfficientNetLite0, EfficientNetLite2
from openvse.backbones.nested import Crops, Frames
from openvse.backbones.pretrained import TransformersVision
from openvse.backbones.resnet import ResNet
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
        "transformers_vision": TransformersVision,
    },
)

__all__ = ["BACKBONES", "Backbone", "EfficientNetLite0", "cells"]
