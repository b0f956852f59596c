"""Exported models that run in ONNX Runtime, without PyTorch. Nothing in this room imports it."""

from __future__ import annotations

from openvse.runtime.arrays import ArraySet
from openvse.runtime.description import EXPORT, Description, is_export, read_description
from openvse.runtime.model import OnnxModel, load_embedder
from openvse.runtime.reading import Preprocessing, RuntimeTokenizer, read_tokenizer

__all__ = [
    "EXPORT",
    "ArraySet",
    "Description",
    "OnnxModel",
    "Preprocessing",
    "RuntimeTokenizer",
    "is_export",
    "load_embedder",
    "read_description",
    "read_tokenizer",
]
