"""All local features, unchanged."""

from __future__ import annotations

from openvse.aggregators.base import Aggregator, require_same_width
from openvse.types import EmbeddingSet, Features


class Tokens(Aggregator):
    """Keeps every local feature (K = N), for similarities that let an image and a text attend to each other.

    Args:
        unit_length: whether to scale each feature to unit length, as similarities that compare cosines need
            (``set_max`` then scores the best pair of a grid cell and a word).

    Raises:
        RecipeError: the widths differ, so the encoder needs a projection.
    """

    order_aware = True
    indexable = False
    fixed_k = False

    def __init__(self, *, input_dim: int, embed_dim: int, unit_length: bool = False) -> None:
        super().__init__()
        require_same_width("tokens", input_dim, embed_dim)
        self.unit_length = unit_length

    def forward(self, features: Features) -> EmbeddingSet:
        """Return the local features; padding stays masked and is 0."""
        return EmbeddingSet(features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0), features.mask)
