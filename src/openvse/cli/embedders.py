"""The model of a search or an index: a model folder, or an exported model, which needs no PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from openvse.errors import ModelError

if TYPE_CHECKING:
    from openvse.model import TwoTower
    from openvse.runtime import OnnxModel

Embedder: TypeAlias = "TwoTower | OnnxModel"


def load_embedder(source: str, *, device: str = "cpu", threads: int | None = None) -> Embedder:
    """Load a model that embeds images and sentences.

    Args:
        source: the folder of an exported model, or whatever ``openvse.load`` takes.
        device: where a model of PyTorch computes; an exported model computes on the CPU.
        threads: the number of CPU threads of an exported model; None leaves it to ONNX Runtime.

    Raises:
        ModelError: there is no such model, or it needs PyTorch, which is not installed.
    """
    from openvse.runtime import OnnxModel, is_export

    if is_export(source):
        if device != "cpu":
            raise ModelError(f"an exported model computes on the CPU, not on {device}: leave out --device")
        return OnnxModel(source, threads=threads)
    try:
        from openvse.model import TwoTower
        from openvse.tasks.load import load_as
    except ImportError as error:
        raise ModelError(
            f"{source} is not an exported model, and only these run in this installation: make one where openvse is "
            f"installed with 'openvse export {source} EXPORT', and name it with --model"
        ) from error
    return load_as(TwoTower, source, device=device)
