"""The encoding half of a correspondence autoencoder."""

from __future__ import annotations

import torch
from torch import Tensor

from openvse.aggregators.base import Aggregator
from openvse.functional import masked_mean
from openvse.layers.linear import xavier_linear
from openvse.types import EmbeddingSet, Features


class Autoencoder(Aggregator):
    """``h = sigmoid(W x + b)``, where x is the mean of the raw local features (Feng et al., ACM Multimedia 2014).

    The embedding is h. The set also carries h before it is scaled (``residual``) and x (``source``), which the term
    ``correspondence`` reconstructs from h; the decoders belong to that term, as a trained model does not need them.

    Deviation: the paper first trains restricted Boltzmann machines on each side; here x is a feature of a network, and
    the code has one layer.

    Args:
        input_dim: L, the width of the raw local features, which the encoder does not project.
        embed_dim: D, the width of the code.
    """

    yields_residual = True
    yields_source = True

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.code = xavier_linear(input_dim, embed_dim)

    def forward(self, features: Features) -> EmbeddingSet:
        """Encode the mean of each item (K = 1)."""
        source = masked_mean(features.local, features.mask)
        code: Tensor = self.code(source).sigmoid().unsqueeze(1)
        mask = torch.ones(code.shape[:2], dtype=torch.bool, device=code.device)
        return EmbeddingSet(code, mask, code, source)
