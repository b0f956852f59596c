"""Aggregators turn the local features of an item into its embeddings."""

from __future__ import annotations

from openvse.aggregators import composed, gpo, learned, simple
from openvse.aggregators.gpo import GPO
from openvse.aggregators.simple import Aggregator, KMax, Pooling
from openvse.registry import Registry, parts_of

_NAMES = """
ada_pool adpool attention_pool autoencoder beside conv1d external_attention first_token fs_pool gated gaussian gcn gem
gpo gpo_data_dependent k_max last_token lip log_sum_exp map_head max mean multi_view pie_net pooled_linear
score_attention self_attention seq2seq slot_attention soft_pool tokens top_percent
"""

_PARTS = parts_of(_NAMES, composed, gpo, learned, simple)
globals().update({part.__name__: part for part in _PARTS.values()})  # each is a name of the room, too
AGGREGATORS: Registry[Aggregator] = Registry("aggregator", _PARTS)

__all__ = ["AGGREGATORS", "GPO", "Aggregator", "KMax", "Pooling"]
