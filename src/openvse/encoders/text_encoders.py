"""The text encoders by the names that recipes use."""

from __future__ import annotations

from openvse.encoders.bag_of_words import BagOfWords
from openvse.encoders.base import TextEncoder
from openvse.encoders.bigru import BiGRU
from openvse.encoders.role_graph import RoleGraphEncoder
from openvse.encoders.transformers_text import TransformersText
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
