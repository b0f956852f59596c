"""The precision in which a run computes its products."""

from __future__ import annotations

from typing import Literal

import torch
from accelerate import Accelerator

from openvse.errors import TrainingError

Precision = Literal["fp32", "bf16", "fp16"]
_FAST_BF16 = ("avx512_bf16", "amx_bf16", "sve_bf16")
"""The instructions with which PyTorch multiplies in bf16 on a processor; without them it takes 80 times as long."""


def chosen_precision(wanted: Literal["auto"] | Precision, device: str) -> Precision:
    """Return the precision of a run; ``auto`` is bf16 where the device computes it fast, and fp32 elsewhere.

    Args:
        wanted: ``training.precision`` of the recipe.
        device: the type of the device: cpu, cuda, mps, ...

    Raises:
        TrainingError: fp16 is wanted on a CPU.
    """
    if wanted == "auto":
        return "bf16" if computes_bf16(device) else "fp32"
    if wanted == "fp16" and device == "cpu":
        raise TrainingError(
            "training.precision is fp16, which needs a GPU: on a CPU set training.precision=auto or fp32"
        )
    return wanted


def precision_of(accelerator: Accelerator) -> str:
    """Return the precision that a run was set up with."""
    return "fp32" if accelerator.mixed_precision == "no" else str(accelerator.mixed_precision)


def computes_bf16(device: str) -> bool:
    """Return whether a type of device has instructions for products in bf16, as far as PyTorch can tell."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # as in PyTorch 2.6
        return False
    found = torch.cpu.get_capabilities()
    return any(bool(found.get(name)) for name in _FAST_BF16)
