"""A tower decides the length and the precision of embeddings, once."""

import pytest
import torch
from torch import Tensor, nn

from openvse.aggregators import Tokens
from openvse.encoders.projections import Encoder
from openvse.model.two_tower import Tower, evaluating
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


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_comes_back(training: bool) -> None:
    module = nn.Sequential(nn.Dropout(0.5)).train(training)
    with evaluating(module):
        assert not module.training and not module[0].training
    assert module.training is module[0].training is training


def test_the_mode_comes_back_after_an_error() -> None:
    module = nn.Dropout(0.5).train()
    with pytest.raises(KeyError), evaluating(module):
        raise KeyError
    assert module.training
