"""Similarities compute scores from the embeddings of images and texts."""

from __future__ import annotations

from openvse.registry import Registry
from openvse.similarities.scores import CSD, Fused, Order, ScaledCosine, SetMax, Similarity, SmoothChamfer

SIMILARITIES: Registry[Similarity] = Registry(
    "similarity",
    {
        "csd": CSD,
        "fused": Fused,
        "order": Order,
        "scaled_cosine": ScaledCosine,
        "set_max": SetMax,
        "smooth_chamfer": SmoothChamfer,
    },
)

__all__ = ["SIMILARITIES", "SetMax", "Similarity"]
