"""Several views of an item, the aggregator of MV-VSE."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import nn

from openvse.aggregators.base import Aggregator, RankedPooling
from openvse.aggregators.gpo import GPO
from openvse.errors import RecipeError
from openvse.functional import sort_descending
from openvse.layers.linear import xavier_linear
from openvse.registry import Maker
from openvse.types import EmbeddingSet, Features, moved, on_cpu


class MultiView(Aggregator):
    """K aggregators over one set of features, ``v_k = f_k({x_n})`` (MV-VSE, eq. 4).

    Each view is a copy with its own weights.

    Args:
        num_views: K.
        share_projection: whether all views read the same features (the paper); otherwise each has its own
            Linear(L, D) before it, and the encoder does not need a projection.

    Raises:
        RecipeError: there is less than one view, or the views have no weights and would all be equal.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        aggregator: Maker[Aggregator] = GPO,
        num_views: int = 3,
        share_projection: bool = True,
    ) -> None:
        super().__init__()
        if num_views < 1:
            raise RecipeError(f"multi_view got num_views = {num_views}: it must be at least 1 (usual: 3)")
        self.projections = nn.ModuleList(
            nn.Identity() if share_projection else xavier_linear(input_dim, embed_dim)
            for _ in range(num_views)
        )
        width = input_dim if share_projection else embed_dim
        views = [aggregator(input_dim=width, embed_dim=embed_dim) for _ in range(num_views)]
        self.views = nn.ModuleList(views)
        self.order_aware, self.indexable = views[0].order_aware, views[0].indexable
        self.needs_pooled = views[0].needs_pooled
        self.fixed_k, self.yields_residual = views[0].fixed_k, views[0].yields_residual
        self.unit_length = views[0].unit_length
        self.shares_sort = share_projection and all(isinstance(view, RankedPooling) for view in views)
        if num_views > 1 and not any(True for _ in self.parameters()):
            raise RecipeError(
                f"multi_view got {num_views} views without weights, which are all equal: "
                f"set share_projection: false, or choose an aggregator that learns, such as gpo"
            )

    def forward(self, features: Features) -> EmbeddingSet:
        if self.shares_sort:
            features = replace(features, ranked=sort_descending(features.local, features.mask))
        views = [
            view(replace(features, local=projection(features.local)))
            for projection, view in zip(self.projections, self.views, strict=True)
        ]
        residuals = [view.residual for view in views if view.residual is not None]
        return EmbeddingSet(
            torch.cat([view.vectors for view in views], dim=1),
            moved(torch.cat([on_cpu(view.mask) for view in views], dim=1), features.mask.device),
            torch.cat(residuals, dim=1) if residuals else None,
        )

    def curves(self) -> dict[str, list[float]]:
        """Return the curves of all views, as ``view1.NAME``."""
        return {
            f"view{number}.{name}": curve
            for number, view in enumerate(self.views, start=1)
            for name, curve in cast(Aggregator, view).curves().items()
        }
