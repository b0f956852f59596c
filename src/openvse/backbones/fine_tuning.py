"""Fine-tuning of a pretrained network inside a model: which of its weights train, and in which mode it runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from openvse.errors import ModelError

_STILL = "_kept_still"


def set_backbone_mode(backbone: nn.Module, *, training: bool, fine_tune: bool) -> None:
    """Put a frozen backbone into evaluation mode; BatchNorm layers and what ``keep_still`` marked always are.

    The running statistics of the pretraining are kept (VSE-infinity, section 4.1): a batch of a few large images would
    give poor estimates of them.
    """
    backbone.train(training and fine_tune)
    for module in backbone.modules():
        if isinstance(module, _BatchNorm) or getattr(module, _STILL, False):
            module.eval()


def keep_still(backbone: nn.Module) -> None:
    """Keep the parts of a backbone that do not train now in evaluation mode for good: no dropout in frozen blocks."""
    for child in backbone.children():
        parameters = list(child.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            setattr(child, _STILL, True)
            child.eval()
        else:
            keep_still(child)


def freeze_unreached(backbone: nn.Module, output: Tensor) -> None:
    """Freeze the parameters that have no effect on ``output``, such as those of an unused pooling head.

    Otherwise data-parallel training would wait for their gradients forever.

    Args:
        backbone: the module that made the output.
        output: any output, with its autograd graph.
    """
    parameters = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(output.sum(), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)


def checkpoint_blocks(backbone: nn.Module) -> None:
    """Make every block drop its activations and recompute them in the backward pass.

    A block is a member of an outermost ``nn.ModuleList``: a layer of a transformer, a stage of a ResNet. Only
    the inputs of the blocks stay in memory. The gradients are the same, at the cost of about one more forward
    pass (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).

    Raises:
        ModelError: the network has no such list.
    """
    blocks = [block for blocks in _outermost_lists(backbone) for block in blocks]
    if not blocks:
        raise ModelError(
            "this backbone has no list of blocks to checkpoint: set gradient_checkpointing: false"
        )
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _outermost_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _outermost_lists(child)
