"""Builds parts from their names and options, which turns a recipe into modules."""

from __future__ import annotations

from openvse.assembly.parts import (
    PartMaker,
    build_aggregator,
    build_image_encoder,
    build_part,
    build_text_encoder,
)
from openvse.assembly.pooling import Pool, pooling

__all__ = [
    "PartMaker",
    "Pool",
    "build_aggregator",
    "build_image_encoder",
    "build_part",
    "build_text_encoder",
    "pooling",
]
