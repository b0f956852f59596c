"""One aggregator as a layer for your own model, with tensors as input and output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.assembly.parts import build_part
from openvse.errors import DataError, RecipeError
from openvse.specs.model import Part
from openvse.types import EmbeddingSet, Features


class Pool(nn.Module):
    """An aggregator as an ordinary module, which turns a padded batch and its mask into embeddings.

    The embeddings equal the aggregator's. They do not have unit length: call
    ``torch.nn.functional.normalize(pooled, dim=-1)`` if you need cosines. (The losses of ``openvse.losses`` and
    ``openvse.evaluate`` do this themselves.)

    Args:
        aggregator: any aggregator of ``openvse.aggregators``.

    Examples:
        >>> from openvse.aggregators import KMax
        >>> pool = Pool(KMax(input_dim=4, embed_dim=4, k=2))
        >>> pool(torch.randn(3, 7, 4)).shape
        torch.Size([3, 4])
    """

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__()
        self.aggregator = aggregator

    def forward(
        self, local: Tensor, mask: Tensor | None = None, global_vector: Tensor | None = None
    ) -> Tensor:
        """Pool a batch.

        Args:
            local: float ``[B, N, L]``, the local features of each item. The values of the padding do not matter.
            mask: ``[B, N]``, True (or 1) where an element is real, as in an ``attention_mask`` of ``transformers``. It
                is the opposite of PyTorch's ``key_padding_mask``. None means that every element is real.
            global_vector: float ``[B, D]``, one vector for each whole item, for aggregators that need it (pie_net).

        Returns:
            Float ``[B, D]``, or ``[B, K, D]`` from an aggregator that makes several embeddings per item. If their
            number differs (tokens), missing embeddings of an item are 0.

        Raises:
            DataError: a tensor has another shape or type, an item has no real element, or the global vector is missing.
        """
        real = self._real(local, mask)
        embedded: EmbeddingSet = self.aggregator(Features(local, real, self._whole(local, global_vector)))
        if not self.aggregator.fixed_k:
            return embedded.vectors.masked_fill(~embedded.mask.unsqueeze(-1), 0.0)
        return embedded.vectors.squeeze(1) if embedded.vectors.shape[1] == 1 else embedded.vectors

    def _whole(self, local: Tensor, global_vector: Tensor | None) -> Tensor | None:
        """Check and return the global vector."""
        if global_vector is None and not self.aggregator.needs_pooled:
            return None
        width = self.aggregator.arguments().get("embed_dim")
        wanted = f"float [{len(local)}, {width or 'D'}]"
        if global_vector is None:
            raise DataError(
                f"{type(self.aggregator).__name__} needs a global vector of each item, but got none: give one as the "
                f"third argument, {wanted}"
            )
        shape = list(global_vector.shape)
        if len(shape) != 2 or shape[0] != len(local) or width not in (None, shape[1]):
            raise DataError(f"the global vector is {global_vector.dtype} {shape}: give {wanted}")
        return global_vector

    def _real(self, local: Tensor, mask: Tensor | None) -> Tensor:
        """Check both tensors, and return the mask as bool."""
        width = self.aggregator.arguments().get("input_dim")
        if local.dim() != 3 or not local.is_floating_point() or width not in (None, local.shape[2]):
            raise DataError(
                f"the local features are {local.dtype} {list(local.shape)}: give a float tensor "
                f"[items, elements, {width or 'width'}]"
            )
        if mask is None:
            mask = torch.ones(local.shape[:2], dtype=torch.bool, device=local.device)
        if mask.shape != local.shape[:2] or mask.is_floating_point():
            raise DataError(
                f"the mask is {mask.dtype} {list(mask.shape)}: give a bool or integer tensor {list(local.shape[:2])}, "
                f"True where an element is real"
            )
        mask = mask.bool()
        empty = (~mask.any(dim=1)).nonzero().flatten()
        if len(empty):
            raise DataError(
                f"item {int(empty[0])} of the batch has no real element, so there is nothing to pool: leave such items "
                f"out, or check that the mask is True where an element is real"
            )
        return mask


def pooling(part: str | Mapping[str, Any], dim: int, out_dim: int | None = None) -> Pool:
    """Make a pooling layer from the name of an aggregator, as in a recipe.

    Args:
        part: the name of an aggregator, such as ``"gpo"``, or a mapping of its name and options, such as
            ``{"name": "k_max", "k": 5}``. ``openvse list parts`` lists the names.
        dim: L, the width of the local features.
        out_dim: D, the width of the embeddings, by default the same. Most aggregators cannot change the width.

    Raises:
        RecipeError: the name, an option or a width is not allowed.

    Examples:
        >>> pool = pooling("gpo", dim=8)
        >>> pool(torch.randn(2, 5, 8), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])).shape
        torch.Size([2, 8])
    """
    if dim < 1 or (out_dim is not None and out_dim < 1):
        raise RecipeError(f"pooling got dim = {dim}, out_dim = {out_dim}: give widths of at least 1")
    if not isinstance(part, str) and "name" not in part:
        raise RecipeError(f'pooling got {dict(part)!r}: give a name too, such as {{"name": "k_max", "k": 5}}')
    chosen = Part.model_validate(part)
    widths = {"input_dim": dim, "embed_dim": out_dim or dim}
    return Pool(build_part(AGGREGATORS, chosen, "pooling", widths))
