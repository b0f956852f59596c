"""DivE's uniformity within a set against a loop over its pairs."""

import math

import pytest
import torch
from set_batches import random_set_batch
from torch import Tensor

from openvse.objectives import SetUniformity
from openvse.types import ScoredBatch


def slow_uniformity(b: ScoredBatch) -> float:
    total = 0.0
    for side in (b.images, b.texts):
        assert side.residual is not None
        for residuals in side.residual:
            units = [r / r.norm() for r in residuals]
            pairs = [(units[k], units[m]) for k in range(len(units)) for m in range(k + 1, len(units))]
            kernels = [math.exp(-2 * float((x - y).pow(2).sum())) for x, y in pairs]
            total += sum(kernels) / max(1, len(kernels)) / len(side)
    return total


@pytest.mark.parametrize(("k", "text_k"), [(4, 3), (2, 1), (1, 1)])
def test_equals_the_loop(k: int, text_k: int) -> None:
    b = random_set_batch(3, 4, k, seed=0, text_k=text_k)
    assert float(SetUniformity()(b)) == pytest.approx(slow_uniformity(b), abs=1e-12)


def test_only_pairs_that_exist_count() -> None:
    b = random_set_batch(2, 2, 3, seed=0)
    several: Tensor = torch.tensor([[True, True, False], [True, True, False]])
    masked = b.images.map(lambda tensor: several if tensor.dtype == torch.bool else tensor)
    fewer = b.images.map(lambda tensor: tensor[:, :2])
    values = [float(SetUniformity()(ScoredBatch(b.scores, b.positives, side, b.texts))) for side in (masked, fewer)]
    assert values[0] == pytest.approx(values[1], abs=1e-12)
