"""Aggregators: local features of an item -> its embeddings."""

from __future__ import annotations

from openvse.aggregators.base import Aggregator, Pooling
from openvse.aggregators.gpo import GPO
from openvse.aggregators.k_max import KMax
from openvse.aggregators.max import Max
from openvse.aggregators.mean import Mean
from openvse.registry import Registry

AGGREGATORS: Registry[Aggregator] = Registry(
    "aggregator", {"gpo": GPO, "k_max": KMax, "max": Max, "mean": Mean}
)

__all__ = ["AGGREGATORS", "GPO", "Aggregator", "KMax", "Max", "Mean", "Pooling"]
