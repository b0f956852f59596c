"""Aggregators: local features of an item -> its embeddings."""

from __future__ import annotations

from openvse.aggregators.adpool import AdPool
from openvse.aggregators.base import Aggregator, AggregatorFactory, Pooling, SingleVector
from openvse.aggregators.gpo import GPO
from openvse.aggregators.k_max import KMax
from openvse.aggregators.max import Max
from openvse.aggregators.mean import Mean
from openvse.aggregators.multi_view import MultiView
from openvse.aggregators.pie_net import PIENet
from openvse.registry import Registry

AGGREGATORS: Registry[Aggregator] = Registry(
    "aggregator",
    {
        "adpool": AdPool,
        "gpo": GPO,
        "k_max": KMax,
        "max": Max,
        "mean": Mean,
        "multi_view": MultiView,
        "pie_net": PIENet,
    },
)

__all__ = [
    "AGGREGATORS",
    "GPO",
    "AdPool",
    "Aggregator",
    "AggregatorFactory",
    "KMax",
    "Max",
    "Mean",
    "MultiView",
    "PIENet",
    "Pooling",
    "SingleVector",
]
