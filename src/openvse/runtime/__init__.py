"""Exported models that run in ONNX Runtime, without PyTorch. Nothing in this room imports it."""

from openvse.runtime.model import OnnxModel

__all__ = ["OnnxModel"]
