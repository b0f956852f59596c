"""Evaluation for a while, and the mode that comes back."""

from __future__ import annotations

import pytest
from torch import nn

from openvse.model.tower import evaluating


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
