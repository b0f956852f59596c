"""Aggregators turn the local features of an item into its embeddings."""

from __future__ import annotations

from openvse.aggregators.base import Aggregator, Pooling
from openvse.aggregators.composed import GCN, Beside, Gated, Gaussian, MultiView, PooledLinear
from openvse.aggregators.gpo import GPO, GPODataDependent
from openvse.aggregators.learned import (
    LIP,
    AdPool,
    AttentionPool,
    Autoencoder,
    Conv1d,
    ExternalAttention,
    FSPool,
    MapHead,
    PIENet,
    ScoreAttention,
    SelfAttention,
    Seq2Seq,
    SlotAttention,
)
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
        "fs_pool": FSPool,
        "gated": Gated,
        "gaussian": Gaussian,
        "gcn": GCN,
        "gem": GeM,
        "gpo": GPO,
        "gpo_data_dependent": GPODataDependent,
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

__all__ = ["AGGREGATORS", "GPO", "Aggregator", "KMax", "Pooling"]
