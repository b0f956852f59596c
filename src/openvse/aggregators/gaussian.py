"""An embedding that is a Gaussian distribution: a mean and a variance, each with a pooling of its own."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from openvse.aggregators.base import Aggregator, require_single_vectors
from openvse.aggregators.gpo import GPO
from openvse.errors import RecipeError
from openvse.functional import at_least_single, normalize
from openvse.registry import Maker
from openvse.types import EmbeddingSet, Features


class Gaussian(Aggregator):
    """The mean m, of unit length, and the log-variances z of a Gaussian (PCME++, Chun, ICLR 2024, section 3.1).

    Each is pooled from the output of a linear layer of its own. The embedding is ``[m, u, 1]`` of an image and
    ``[m, 1, u]`` of a text, with ``u = -sum_d exp(z_d) / 2``. So the inner product of an image and a text is
    ``m_i . m_t + u_i + u_t = 1 - csd(i, t) / 2`` (eq. 1), and a search over inner products ranks by the distance of the
    distributions, in both directions. The log-variances are the residual of the embedding set.

    Deviation: the released model makes the variance from a copy of the last block of each CLIP tower; here both
    poolings read the same local features.

    Args:
        embed_dim: D, the width of an embedding; mean and log-variances are D - 2 wide.
        side: ``image`` or ``text``; in a recipe, the side on which the aggregator is.
        mean: the aggregator that makes m.
        log_variance: the aggregator that makes z.
        start: every log-variance at the beginning, as the weights of z begin at 0.

    Raises:
        RecipeError: D is below 3, or an inner aggregator does not make one vector for each item.
    """

    yields_residual = True
    yields_gaussian = True
    unit_length = False

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        side: Literal["image", "text"] = "image",
        mean: Maker[Aggregator] = GPO,
        log_variance: Maker[Aggregator] = GPO,
        start: float = -6.0,
    ) -> None:
        super().__init__()
        width = embed_dim - 2
        if width < 1:
            raise RecipeError(
                f"gaussian got embed_dim = {embed_dim}: give at least 3, as it needs 2 of its own"
            )
        self.side = side
        self.to_mean, self.to_log_variance = nn.Linear(input_dim, width), nn.Linear(input_dim, width)
        nn.init.xavier_uniform_(self.to_mean.weight)
        nn.init.zeros_(self.to_mean.bias)
        nn.init.zeros_(self.to_log_variance.weight)
        nn.init.constant_(self.to_log_variance.bias, start)
        self.mean = mean(input_dim=width, embed_dim=width)
        self.log_variance = log_variance(input_dim=width, embed_dim=width)
        require_single_vectors("gaussian", {"mean": self.mean, "log_variance": self.log_variance})
        self.order_aware = self.mean.order_aware or self.log_variance.order_aware

    def forward(self, features: Features) -> EmbeddingSet:
        """Return the embedding of each item, ``[B, 1, D]``, with its log-variances as residual, ``[B, 1, D - 2]``."""
        real = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        mean = self.mean(Features(self.to_mean(real), features.mask))
        pooled = self.log_variance(Features(self.to_log_variance(real), features.mask)).vectors
        log_variance: Float[Tensor, "B 1 E"] = at_least_single(pooled)
        half = -log_variance.exp().sum(dim=-1, keepdim=True) / 2
        ends = [half, torch.ones_like(half)]
        vectors = torch.cat(
            [normalize(mean.vectors), *(ends if self.side == "image" else ends[::-1])], dim=-1
        )
        return EmbeddingSet(vectors, mean.mask, log_variance)
