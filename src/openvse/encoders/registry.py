"""The text encoders by the names that recipes use."""

from __future__ import annotations

from openvse.encoders.base import TextEncoder
from openvse.encoders.bigru import BiGRU
from openvse.encoders.transformers_text import TransformersText
from openvse.registry import Registry

TEXT_ENCODERS: Registry[TextEncoder] = Registry(
    "text encoder", {"bigru": BiGRU, "transformers_text": TransformersText}
)
