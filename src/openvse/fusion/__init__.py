"""Fusions read the tokens of an image and of a text together and reduce each side to k vectors."""

from __future__ import annotations

from openvse.fusion.base import Fusion, Pooled, ScoreAttentionFusion
from openvse.registry import Registry

FUSIONS: Registry[Fusion] = Registry("fusion", {"pooled": Pooled, "score_attention": ScoreAttentionFusion})
