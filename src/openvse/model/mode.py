"""Evaluation mode for the length of a block: no dropout, no augmentation; then the mode from before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and back into the mode from before, also after an error.

    Gradients are not touched: a caller that needs none enters ``torch.inference_mode`` too.

    Args:
        module: a model, a tower or an encoder.
    """
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)
