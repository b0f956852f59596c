"""Evaluation mode within a block: without dropout and augmentation; afterwards the previous mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and afterwards back into its previous mode, also after an error.

    Gradients are not switched off: a caller that does not need them also enters ``torch.inference_mode``.

    Args:
        module: a model, a tower or an encoder.
    """
    if not any(each.training for each in module.modules()):  # setting it anew costs milliseconds
        yield
        return
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)
