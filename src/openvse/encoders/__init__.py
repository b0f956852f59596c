"""Encoders turn images and sentences into local features of the joint width."""

from __future__ import annotations

from openvse.encoders.augmentations import AUGMENTATIONS, Augmentation
from openvse.encoders.base import Encoder, TextEncoder
from openvse.encoders.bigru import BagOfWords, BiGRU
from openvse.encoders.global_vectors import GLOBAL_VECTORS, GlobalVector
from openvse.encoders.image_encoder import ImageEncoder
from openvse.encoders.projections import PROJECTIONS, Projection
from openvse.encoders.role_graph import RoleGraphEncoder
from openvse.encoders.transformers_text import TransformersText, states_can_be_stored
from openvse.registry import Registry

TEXT_ENCODERS: Registry[TextEncoder] = Registry(
    "text encoder",
    {
        "bag_of_words": BagOfWords,
        "bigru": BiGRU,
        "role_graph": RoleGraphEncoder,
        "transformers_text": TransformersText,
    },
)

__all__ = [
    "AUGMENTATIONS",
    "GLOBAL_VECTORS",
    "PROJECTIONS",
    "TEXT_ENCODERS",
    "Augmentation",
    "BagOfWords",
    "BiGRU",
    "Encoder",
    "GlobalVector",
    "ImageEncoder",
    "Projection",
    "RoleGraphEncoder",
    "TextEncoder",
    "TransformersText",
    "states_can_be_stored",
]
