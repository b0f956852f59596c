"""What every registered aggregator must hold, present and future."""

from __future__ import annotations

from typing import Any

import pytest

from openvse.aggregators import AGGREGATORS
from openvse_testing import check_aggregator
from tests.failures import Failures

# Every part as it comes, and the options that change what it computes, as a recipe writes them.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "adpool": [{"token_weights": "per_dimension"}, {"balance": 0.25}, {"balance": 1.0}, {"balance": "random"}],
    "conv1d": [{"length": 4}],
    "frame_levels": [{"aggregator": "gpo"}],
    "fs_pool": [{"num_pieces": 1}],
    "gated": [
        {"gate_start": -0.5, "base": "last_token", "pool": "adpool", "share_projection": False},
        {"gate_start": 0.5, "pool": {"name": "pie_net", "num_embeddings": 3}},
        {"gate_start": 0.5, "base": {"name": "multi_view", "num_views": 2}, "pool": "max"},
        {"gate_start": 0.5, "base": "pie_net", "pool": {"name": "multi_view", "num_views": 2}},
    ],
    "gcn": [{"aggregator": "seq2seq", "num_layers": 2}, {"aggregator": "pie_net"}],
    "gem": [{"exponent": 40.0}],
    "gpo": [
        {"generator": "transformer"},
        {"generator": "mlp"},
        {"generator": "interpolation", "num_positions": 4},
        {"positions": "learned", "num_positions": 4},
        {"per_dimension": True},
        {"per_dimension": True, "generator": "interpolation"},
    ],
    "graph_levels": [{"aggregator": "gpo", "num_layers": 2}, {"num_layers": 0}],
    "log_sum_exp": [{"temperature": 0.01}],
    "multi_view": [
        {"num_views": 1},
        {"aggregator": "mean", "share_projection": False},
        {"aggregator": {"name": "k_max", "k": 2}, "share_projection": False, "num_views": 2},
        {"aggregator": {"name": "pie_net", "num_embeddings": 2}, "num_views": 2},
    ],
    "pie_net": [{"num_embeddings": 3}, {"with_global": False}],
    "score_attention": [{"num_heads": 2, "num_vectors": 3}],
    "tokens": [{"unit_length": True}],
    "top_percent": [{"percent": 1}, {"percent": 100}],
}


@pytest.mark.medium
@pytest.mark.parametrize("name", AGGREGATORS)
def test_the_aggregator_keeps_its_promises(name: str) -> None:
    failures = Failures()
    for options in [{}, *OPTIONS.get(name, [])]:
        with failures.of(options):
            check_aggregator(name, options=options)
    assert not failures, failures


def test_options_belong_to_registered_parts() -> None:
    assert sorted(set(OPTIONS) - set(AGGREGATORS)) == []
