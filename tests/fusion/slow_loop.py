"""Score attention and its stack from the equations, a query and a key at a time, in plain Python and small tensors."""

import torch
from torch import Tensor

from openvse.layers.attention import Attention, AttentionScores


def read_one(layer: Attention, x: Tensor, z: Tensor) -> Tensor:
    """``LN(x + W [softmax(Q_h K_h^T / sqrt(d)) V_h]_h + b)`` for the tokens of one pair, ``[N, D]`` and ``[M, D]``."""
    d = x.shape[1] // layer.num_heads
    rows = []
    for token in x:
        heads = []
        for head in range(layer.num_heads):
            part = slice(head * d, (head + 1) * d)
            query = layer.query.weight[part] @ token + layer.query.bias[part]
            exponents = [((layer.key.weight[part] @ other) @ query / d**0.5).exp() for other in z]
            values = [layer.value.weight[part] @ other + layer.value.bias[part] for other in z]
            total = sum(exponents)
            heads.append(sum(e / total * v for e, v in zip(exponents, values, strict=True)))
        update = token + layer.output.weight @ torch.cat(heads) + layer.output.bias
        centred = update - update.mean()
        normed = centred / (centred.square().mean() + layer.norm.eps).sqrt()
        rows.append(normed * layer.norm.weight + layer.norm.bias)
    return torch.stack(rows)


def scores_one(operator: AttentionScores, x: Tensor, z: Tensor) -> Tensor:
    """``S_k(X, Z)`` of one pair, ``[k, N]``: fc acts on the concatenated heads, as the paper has it (eq. 2 and 4)."""
    width = x.shape[1]
    d = width // operator.num_heads
    weights = []
    for k in range(operator.num_vectors):
        scores = []
        for token in x:
            heads = []
            for head in range(operator.num_heads):
                part = slice(k * width + head * d, k * width + (head + 1) * d)
                query = operator.query.weight[part] @ token + operator.query.bias[part]
                exponents = [((operator.key.weight[part] @ other) @ query / d**0.5).exp() for other in z]
                total = sum(exponents)
                heads.append(
                    sum(
                        e / total * (operator.value.weight[part] @ other) for e, other in zip(exponents, z, strict=True)
                    )
                )
            scores.append((operator.fc[k] @ torch.cat(heads)).exp())
        weights.append(torch.stack(scores) / sum(scores))
    return torch.stack(weights)
