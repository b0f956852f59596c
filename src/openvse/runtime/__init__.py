"""Exported models that run in ONNX Runtime, without PyTorch. Nothing in this room imports it."""

from __future__ import annotations

from openvse.runtime.arrays import ArraySet
from openvse.runtime.description import Description, is_export, read_description
from openvse.runtime.model import OnnxModel, load_embedder
from openvse.runtime.reading import Preprocessing, read_tokenizer

__all__ = [
    "ArraySet",
    "Description",
    "OnnxModel",
    "Preprocessing",
    "is_export",
    "load_embedder",
    "read_description",
    "read_tokenizer",
]
