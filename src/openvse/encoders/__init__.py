"""Encoders turn images and sentences into local features of the joint width."""

from __future__ import annotations

from openvse.encoders.image_encoder import ImageEncoder
from openvse.encoders.projections import TextEncoder
from openvse.encoders.transformers_text import TransformersText
from openvse.encoders.words_encoder import BagOfWords, BiGRU
from openvse.registry import Registry

TEXT_ENCODERS: Registry[TextEncoder] = Registry(
    "text encoder", {"bag_of_words": BagOfWords, "bigru": BiGRU, "transformers_text": TransformersText}
)

__all__ = ["TEXT_ENCODERS", "BiGRU", "ImageEncoder", "TextEncoder"]
