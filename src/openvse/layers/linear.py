"""A linear layer with the initial weights that most papers of the field use."""

from __future__ import annotations

from torch import nn


def xavier_linear(input_dim: int, output_dim: int, *, bias: bool = True) -> nn.Linear:
    """Make a linear layer with Xavier-uniform weights and a bias of 0, or without one."""
    linear = nn.Linear(input_dim, output_dim, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
