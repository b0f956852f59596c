"""Comparing an aggregator with a slow loop over items, elements and dimensions: values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from openvse.aggregators import Aggregator
from openvse.types import Features

# An item's local features [N, L], and its global vector [D], to its embeddings [K, D].
Loop = Callable[[Tensor, Tensor], Tensor]


def ragged(lengths: list[int], width: int, seed: int = 0, pooled_dim: int | None = None) -> Features:
    """Random items in float64; their padding is random too."""
    generator = torch.Generator().manual_seed(seed)
    local = torch.randn(len(lengths), max(lengths), width, dtype=torch.float64, generator=generator)
    pooled = torch.randn(len(lengths), pooled_dim or width, dtype=torch.float64, generator=generator)
    return Features(local, torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1), pooled)


def assert_equals_loop(aggregator: Aggregator, loop: Loop, features: Features) -> None:
    """Compare embeddings, and the gradients of inputs and weights, to 1e-10."""
    wanted = [features.local.clone().requires_grad_(), features.pooled.clone().requires_grad_()]
    found = [leaf.detach().clone().requires_grad_() for leaf in wanted]
    weights = list(aggregator.parameters())
    vectors = aggregator(Features(found[0], features.mask, found[1])).vectors
    expected = torch.stack([loop(wanted[0][item, mask], wanted[1][item]) for item, mask in enumerate(features.mask)])
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-10)
    direction = torch.randn(expected.shape, dtype=torch.float64)
    mine = gradients(vectors, direction, found + weights)
    theirs = gradients(expected, direction, wanted + weights)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def gradients(vectors: Tensor, direction: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad((vectors * direction).sum(), leaves, materialize_grads=True))


def softmax(values: list[Tensor]) -> list[Tensor]:
    """From the definition, one number at a time."""
    total = sum(value.exp() for value in values)
    return [value.exp() / total for value in values]


def ranked(local: Tensor) -> list[Tensor]:
    """Sort each dimension alone, largest first; return the N sorted vectors."""
    columns = [sorted(local[:, dim], key=lambda x: float(x.detach()), reverse=True) for dim in range(local.shape[1])]
    return [torch.stack([column[place] for column in columns]) for place in range(len(local))]


def gru_step(weights: dict[str, Tensor], suffix: str, x: Tensor, h: Tensor) -> Tensor:
    """One step of a GRU from its definition."""
    ri, zi, ni = (weights[f"weight_ih_l0{suffix}"] @ x + weights[f"bias_ih_l0{suffix}"]).chunk(3)
    rh, zh, nh = (weights[f"weight_hh_l0{suffix}"] @ h + weights[f"bias_hh_l0{suffix}"]).chunk(3)
    reset, update = torch.sigmoid(ri + rh), torch.sigmoid(zi + zh)
    return (1 - update) * torch.tanh(ni + reset * nh) + update * h
