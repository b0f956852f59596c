"""Aggregators turn the local features of an item into its embeddings."""

from __future__ import annotations

from openvse.aggregators.ada_pool import AdaPool
from openvse.aggregators.adpool import AdPool
from openvse.aggregators.attention_pool import AttentionPool
from openvse.aggregators.autoencoder import Autoencoder
from openvse.aggregators.base import Aggregator, Pooling, RankedPooling, SingleVector
from openvse.aggregators.beside import Beside
from openvse.aggregators.conv1d import Conv1d
from openvse.aggregators.external_attention import ExternalAttention
from openvse.aggregators.first_token import FirstToken
from openvse.aggregators.frame_levels import FrameLevels
from openvse.aggregators.fs_pool import FSPool
from openvse.aggregators.gated import Gated
from openvse.aggregators.gaussian import Gaussian
from openvse.aggregators.gcn import GCN
from openvse.aggregators.gem import GeM
from openvse.aggregators.gpo import GENERATORS, GPO, POSITIONS, Generator, GPODataDependent, Positions
from openvse.aggregators.graph_levels import GraphLevels
from openvse.aggregators.k_max import KMax
from openvse.aggregators.last_token import LastToken
from openvse.aggregators.lip import LIP
from openvse.aggregators.log_sum_exp import LogSumExp
from openvse.aggregators.map_head import MapHead
from openvse.aggregators.max import Max
from openvse.aggregators.mean import Mean
from openvse.aggregators.multi_view import MultiView
from openvse.aggregators.pie_net import PIENet
from openvse.aggregators.pooled_linear import PooledLinear
from openvse.aggregators.score_attention import ScoreAttention
from openvse.aggregators.self_attention import SelfAttention
from openvse.aggregators.seq2seq import Seq2Seq
from openvse.aggregators.slot_attention import SlotAttention
from openvse.aggregators.soft_pool import SoftPool
from openvse.aggregators.tokens import Tokens
from openvse.aggregators.top_percent import TopPercent
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
