"""How a pretrained backbone behaves inside an encoder: what of it trains, and in which mode it runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def set_backbone_mode(backbone: nn.Module, *, training: bool, fine_tune: bool) -> None:
    """Put a frozen backbone in evaluation mode, and the BatchNorm layers of any backbone.

    Running statistics stay those of the pretraining throughout (VSE-infinity, section 4.1): a batch of a few
    large pictures would estimate them badly.
    """
    backbone.train(training and fine_tune)
    for module in backbone.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


def freeze_unreached(backbone: nn.Module, output: Tensor) -> None:
    """Stop the training of parameters that ``output`` does not depend on, such as an unused pooling head.

    Data-parallel training waits in vain for the gradient of such a parameter.

    Args:
        backbone: the module that made the output.
        output: any output, with its graph.
    """
    parameters = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(output.sum(), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)
