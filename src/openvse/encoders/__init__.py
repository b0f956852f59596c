"""Encoders: raw pictures and sentences -> local features."""

from __future__ import annotations

from openvse.encoders.base import Encoder, ImageEncoder, TextEncoder
from openvse.encoders.bigru import BiGRU
from openvse.encoders.efficientnet_lite0 import EfficientNetLite0
from openvse.encoders.frames import Frames
from openvse.encoders.precomputed import Precomputed
from openvse.encoders.resnet import ResNet
from openvse.encoders.timm_vision import TimmVision
from openvse.encoders.transformers_detector import TransformersDetector
from openvse.encoders.transformers_text import TransformersText
from openvse.encoders.transformers_vision import TransformersVision
from openvse.encoders.vocabulary import Vocabulary
from openvse.registry import Registry

IMAGE_ENCODERS: Registry[ImageEncoder] = Registry(
    "image encoder",
    {
        "efficientnet_lite0": EfficientNetLite0,
        "frames": Frames,
        "precomputed": Precomputed,
        "resnet": ResNet,
        "timm_vision": TimmVision,
        "transformers_detector": TransformersDetector,
        "transformers_vision": TransformersVision,
    },
)
TEXT_ENCODERS: Registry[TextEncoder] = Registry(
    "text encoder", {"bigru": BiGRU, "transformers_text": TransformersText}
)

__all__ = [
    "IMAGE_ENCODERS",
    "TEXT_ENCODERS",
    "BiGRU",
    "EfficientNetLite0",
    "Encoder",
    "Frames",
    "ImageEncoder",
    "Precomputed",
    "ResNet",
    "TextEncoder",
    "TimmVision",
    "TransformersDetector",
    "TransformersText",
    "TransformersVision",
    "Vocabulary",
]
