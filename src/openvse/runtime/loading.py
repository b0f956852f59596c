"""A model that embeds, by its place: exported, or of PyTorch where the training half is installed."""

from __future__ import annotations

from typing import Any

from openvse.errors import ModelError
from openvse.halves import training_module
from openvse.runtime.description import is_export
from openvse.runtime.model import OnnxModel


def load_embedder(source: str, *, device: str = "cpu", threads: int | None = None) -> Any:
    """Load a model that embeds images and sentences.

    Args:
        source: the folder of an exported model, or whatever ``openvse.load`` takes.
        device: where a model of PyTorch computes; an exported model computes on the CPU.
        threads: the number of CPU threads of an exported model; None leaves it to ONNX Runtime.

    Raises:
        ModelError: there is no such model, or it needs PyTorch, which is not installed.
    """
    if is_export(source):
        if device != "cpu":
            raise ModelError(f"an exported model computes on the CPU, not on {device}: leave out --device")
        return OnnxModel(source, threads=threads)
    return training_module("openvse.tasks.load").load_two_tower(source, device=device)
