"""Aggregators turn the local features of an item into its embeddings."""

from __future__ import annotations

from openvse.aggregators.adpool import AdPool
from openvse.aggregators.base import Aggregator, Pooling, RankedPooling, SingleVector
from openvse.aggregators.beside import Beside
from openvse.aggregators.gated import Gated
from openvse.aggregators.gaussian import Gaussian
from openvse.aggregators.gcn import GCN
from openvse.aggregators.gpo import GENERATORS, GPO, POSITIONS, Generator, GPODataDependent, Positions
from openvse.aggregators.learned import (
    LIP,
    AttentionPool,
    Autoencoder,
    Conv1d,
    ExternalAttention,
    FSPool,
    ScoreAttention,
    SelfAttention,
    Seq2Seq,
)
from openvse.aggregators.levels import FrameLevels, GraphLevels
from openvse.aggregators.map_head import MapHead
from openvse.aggregators.multi_view import MultiView
from openvse.aggregators.pie_net import PIENet
from openvse.aggregators.pooled_linear import PooledLinear
from openvse.aggregators.simple import (
    AdaPool,
    FirstToken,
    GeM,
    KMax,
    LastToken,
    LogSumExp,
    Max,
    Mean,
    SoftPool,
    Tokens,
    TopPercent,
)
from openvse.aggregators.slot_attention import SlotAttention
from openvse.registry import Registry

AGGREGATORS: Registry[Aggregator] = Registry(
    "aggregator",
    {
        "ada_pool": AdaPool,
        "adpool": AdPool,
        "attention_pool": AttentionPool,
        "autoencoder": Autoencoder,
        "beside": Beside,
        "conv1d": Conv1d,
        "external_attention": ExternalAttention,
        "first_token": FirstToken,
        "frame_levels": FrameLevels,
        "fs_pool": FSPool,
        "gated": Gated,
        "gaussian": Gaussian,
        "gcn": GCN,
        "gem": GeM,
        "gpo": GPO,
        "gpo_data_dependent": GPODataDependent,
        "graph_levels": GraphLevels,
        "k_max": KMax,
        "last_token": LastToken,
        "lip": LIP,
        "log_sum_exp": LogSumExp,
        "map_head": MapHead,
        "max": Max,
        "mean": Mean,
        "multi_view": MultiView,
        "pie_net": PIENet,
        "pooled_linear": PooledLinear,
        "score_attention": ScoreAttention,
        "self_attention": SelfAttention,
        "seq2seq": Seq2Seq,
        "slot_attention": SlotAttention,
        "soft_pool": SoftPool,
        "tokens": Tokens,
        "top_percent": TopPercent,
    },
)

__all__ = [
    "AGGREGATORS",
    "GCN",
    "GENERATORS",
    "GPO",
    "LIP",
    "POSITIONS",
    "AdPool",
    "AdaPool",
    "Aggregator",
    "AttentionPool",
    "Autoencoder",
    "Beside",
    "Conv1d",
    "ExternalAttention",
    "FSPool",
    "FirstToken",
    "FrameLevels",
    "GPODataDependent",
    "Gated",
    "Gaussian",
    "GeM",
    "Generator",
    "GraphLevels",
    "KMax",
    "LastToken",
    "LogSumExp",
    "MapHead",
    "Max",
    "Mean",
    "MultiView",
    "PIENet",
    "PooledLinear",
    "Pooling",
    "Positions",
    "RankedPooling",
    "ScoreAttention",
    "SelfAttention",
    "Seq2Seq",
    "SingleVector",
    "SlotAttention",
    "SoftPool",
    "Tokens",
    "TopPercent",
]
