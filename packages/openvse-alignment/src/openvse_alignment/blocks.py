"""AVSE (Liu, Liu, Huang and Lv, AAAI 2025): views of an image by place, embeddings in blocks, and its second loss."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from openvse.aggregators import GPO, Aggregator
from openvse.aggregators.simple import require_single_vectors
from openvse.encoders.augmentations import Augmentation
from openvse.encoders.projections import LinearProjection, Projection
from openvse.errors import RecipeError
from openvse.functional import keep_at_least_one, normalize
from openvse.objectives import Term
from openvse.registry import Maker
from openvse.types import EmbeddingSet, Features, ScoredBatch, moved, on_cpu


class Blocks(Aggregator):
    """Cuts each view of an item into blocks, the "meta-semantic embeddings" of AVSE (AAAI 2025).

    ``[v_g1 ; .. ; v_gB] = u_g / |u_g|`` with ``u_g = pool({W x_n : n in view g})``. ``max_sim {reduction: sum}`` then
    adds, over the blocks of a text, the cosine to the best block of the image.

    With several views, an item is a square grid, row by row, behind ``class_token`` or not. View g keeps the class
    token and the cells nearest to a centre: a random cell in training, and otherwise the point at (g - 1/2) / V of the
    diagonal. Deviations: the released code draws the centres in evaluation too, so that two evaluations differ, and it
    chooses patches before its ViT, which then sees each view by itself.

    Args:
        num_blocks: B, the blocks of a view. A block is ``embed_dim`` wide, and W has ``num_blocks * embed_dim`` rows.
        num_views: V. All views share W and the pooling.
        share: the share of the features that a view keeps.
        training_share: the same in training.
        class_token: whether the first feature stands for the whole image.
        projection: the part that maps raw features with W. The encoder has ``projection: none``.
        pool: the part that makes one vector of a view.
        layer_norm: whether u is normalised by a LayerNorm, as for the texts of AVSE.

    Raises:
        RecipeError: there is no block or view, a share is not in (0, 1], or ``pool`` makes several vectors.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        num_blocks: int = 4,
        num_views: int = 1,
        share: float = 0.9,
        training_share: float = 0.8,
        class_token: bool = False,
        projection: Maker[Projection] = LinearProjection,
        pool: Maker[Aggregator] = GPO,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        if min(num_blocks, num_views) < 1 or not (0 < share <= 1 and 0 < training_share <= 1):
            raise RecipeError(
                f"blocks got num_blocks = {num_blocks}, num_views = {num_views}, share = {share} and training_share = "
                f"{training_share}: give at least 1 block and view, and shares above 0 up to 1"
            )
        width = num_blocks * embed_dim
        self.projection = projection(input_dim=input_dim, embed_dim=width)
        pooling = pool(input_dim=self.projection.output_dim, embed_dim=width)
        require_single_vectors("blocks", {"pool": pooling})
        self.pooling, self.norm = pooling, nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.num_blocks, self.num_views, self.before = num_blocks, num_views, int(class_token)
        self.share, self.training_share = share, training_share
        self.order_aware = pooling.order_aware or num_views > 1
        self.needs_pooled = pooling.needs_pooled

    def forward(self, features: Features) -> EmbeddingSet:
        """Return the blocks of all views, ``[B, V * num_blocks, D]``."""
        real = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        local = self.projection(real, features.mask)
        views = [
            self.norm(self.pooling(replace(features, local=local, mask=mask)).vectors[:, 0])
            for mask in self.views(features.mask)
        ]
        blocks = normalize(torch.stack(views, dim=1)).view(len(real), self.num_views * self.num_blocks, -1)
        return EmbeddingSet.full(blocks)

    def views(self, mask: Bool[Tensor, "B N"]) -> list[Bool[Tensor, "B N"]]:
        """Return the features of each view. Hidden features keep their places and are in no view."""
        if self.num_views == 1:
            return [mask]
        here = on_cpu(mask)
        sizes = (here * torch.arange(1, here.shape[1] + 1)).amax(dim=1) - self.before
        sides = _sides(sizes)
        if self.training:
            cells = (torch.rand(self.num_views, len(here)) * sizes).floor()
            centres = torch.stack([cells.div(sides, rounding_mode="floor"), cells % sides], dim=-1)
        else:
            along = (torch.arange(self.num_views) + 0.5) / self.num_views
            centres = (along.unsqueeze(1) * (sides - 1)).unsqueeze(-1).expand(-1, -1, 2)
        return [moved(near(here, sizes, each, self._kept(sizes), self.before), mask.device) for each in centres]

    def _kept(self, sizes: Tensor) -> Tensor:
        """Return the number of cells that a view keeps of each item, counted as the released code does."""
        share = self.training_share if self.training else self.share
        return ((sizes + self.before) * share).floor().clamp(min=1)


def near(
    mask: Bool[Tensor, "B N"],
    sizes: Int[Tensor, "B"],
    centres: Float[Tensor, "B 2"],
    kept: Float[Tensor, "B"],
    before: int = 0,
) -> Bool[Tensor, "B N"]:
    """Return the features before the grid, and the given number of its cells that are nearest to a centre.

    Of cells at the same distance, the first ones are taken. At least one feature of each item is kept.
    """
    cells, sides = torch.arange(mask.shape[1] - before), _sides(sizes).unsqueeze(1)
    place = torch.stack([cells.div(sides, rounding_mode="floor"), cells % sides], dim=-1)
    distance = (place - centres.unsqueeze(1)).norm(dim=-1)
    distance.masked_fill_(cells >= sizes.unsqueeze(1), torch.inf)  # padding
    rank = distance.argsort(dim=1, stable=True).argsort(dim=1)
    view = rank < kept.unsqueeze(1)
    view = torch.cat([torch.ones_like(mask[:, :before]), view], dim=1)
    return keep_at_least_one(view, mask)


def _sides(sizes: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """Return the side of the smallest square grid that has so many cells."""
    return sizes.clamp(min=1).sqrt().ceil()


class Around(Augmentation):
    """Keeps, of each image in training, the features nearest to a drawn one: a view of AVSE, for any method.

    Places are the middles of boxes: of the cells of a grid, of windows, or of the regions of a store with boxes.
    Where they are unknown, nothing is hidden.

    Args:
        share: the share of the features that is kept, rounded down, at least one.

    Raises:
        RecipeError: the share is not in (0, 1].
    """

    def __init__(self, *, share: float = 0.8) -> None:
        super().__init__()
        if not 0 < share <= 1:
            raise RecipeError(f"around got share = {share}: give one above 0 up to 1")
        self.share = share

    def hide(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        return mask

    def hide_at(self, mask: Bool[Tensor, "B N"], boxes: Float[Tensor, "B N 4"]) -> Bool[Tensor, "B N"]:
        places = on_cpu(boxes).view(*boxes.shape[:2], 2, 2).mean(dim=2)
        drawn = torch.rand(mask.shape).masked_fill(~mask, -1.0).argmax(dim=1)
        distance = (places - places[torch.arange(len(mask)), drawn].unsqueeze(1)).norm(dim=-1)
        rank = distance.masked_fill(~mask, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
        kept: Tensor = rank < (mask.sum(dim=1, keepdim=True) * self.share).floor().clamp(min=1)
        return kept


class CrossCorrelation(Term):
    """``sum_d (C_dd - 1)^2 + off_diagonal sum_{d != e} C_de^2`` of two views of the images (AVSE's released code).

    ``C = X^T Y / B``, where the columns of X and Y have unit length over the B images of the batch, and a row is a view
    before a tower scales its blocks. The sum is over all pairs of views. It is the loss of Barlow Twins (Zbontar et
    al., ICML 2021) without centred columns, and with columns of length 1, not sqrt(B). So C is at most 1 / B, and the
    first sum is never far from the width of a view. At K = 1 it is 0.

    Args:
        num_views: the number of views that the embeddings of an image consist of.
        off_diagonal: the weight of the second sum.

    Raises:
        RecipeError: there are less than two views, or, in the forward pass, the images have another number of them.
    """

    needs_unscaled: ClassVar[bool] = True

    def __init__(self, *, num_views: int = 2, off_diagonal: float = 0.0051) -> None:
        super().__init__()
        if num_views < 2:
            raise RecipeError(f"cross_correlation got num_views = {num_views}: give 2 or more, as image.aggregator has")
        self.num_views, self.off_diagonal = num_views, off_diagonal

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        blocks = batch.images.unscaled
        assert blocks is not None  # needs_unscaled
        if (count := blocks.shape[1]) == 1:
            return blocks.sum() * 0.0
        if count % self.num_views:
            raise RecipeError(
                f"cross_correlation compares {self.num_views} views, but an image has {count} embedding(s): use blocks "
                f"for images, with num_views: {self.num_views}"
            )
        views = blocks.reshape(len(blocks), self.num_views, -1).unbind(dim=1)
        columns = [view / (torch.linalg.vector_norm(view, dim=0) + 1e-8) for view in views]
        pairs = [(left, right) for place, left in enumerate(columns) for right in columns[place + 1 :]]
        return torch.stack([self._redundancy(left.T @ right / len(blocks)) for left, right in pairs]).sum()

    def _redundancy(self, correlation: Float[Tensor, "D D"]) -> Float[Tensor, ""]:
        diagonal = correlation.diagonal()
        others = correlation.square().sum() - diagonal.square().sum()
        return (diagonal - 1).square().sum() + self.off_diagonal * others
