"""A tower decides the length and the precision of embeddings, once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from openvse.aggregators import Tokens
from openvse.encoders.base import Encoder
from openvse.model.tower import Tower
from openvse.types import Features, Inputs


class Half(Encoder):
    """Yields its input through a linear map, which autocast computes in half precision."""

    local_dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4)

    def forward(self, inputs: Inputs) -> Features:
        assert inputs.mask is not None
        local: Tensor = self.map(inputs.values)
        return Features(local, inputs.mask)


@pytest.mark.parametrize("unit_length", [True, False])
def test_embeddings_leave_in_single_precision(unit_length: bool) -> None:
    tower = Tower(Half(), Tokens(input_dim=4, embed_dim=4, unit_length=unit_length))
    with torch.autocast("cpu", torch.bfloat16):
        embedded = tower(Inputs(torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)))
    assert embedded.vectors.dtype == torch.float32
    lengths = embedded.vectors.norm(dim=-1)
    assert torch.allclose(lengths, torch.ones(2, 3), atol=1e-6) is unit_length
    assert tower.double()(
        Inputs(torch.randn(2, 3, 4, dtype=torch.float64), torch.ones(2, 3, dtype=torch.bool))
    ).vectors.dtype == (torch.float64)
