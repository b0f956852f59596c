"""Parameter groups with their learning rates, and frozen parts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from openvse.errors import RecipeError
from openvse.specs import OptimizerSpec, PhaseSpec
from openvse.training.optimizer import build_optimizer, check_prefixes, freeze, has_prefix
from openvse.training.schedule import Schedule

NAMES = ["image.encoder.backbone.conv", "image.encoder.fc", "text.encoder.gru"]


def parameters() -> list[tuple[str, nn.Parameter]]:
    return [(name, nn.Parameter(torch.ones(2))) for name in NAMES]


def test_the_longest_prefix_decides_the_multiplier() -> None:
    spec = OptimizerSpec(learning_rate=1.0, multipliers={"image": 0.5, "image.encoder.backbone": 0.1})
    optimizer = build_optimizer(spec, parameters())
    Schedule(spec, [PhaseSpec(epochs=1)], 10).apply(optimizer, 0, 0)
    assert sorted(group["lr"] for group in optimizer.param_groups) == [0.1, 0.5, 1.0]


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_the_optimiser_is_the_one_named(name: str, kind: type) -> None:
    spec = OptimizerSpec(name=name, weight_decay=0.3, amsgrad=True)
    optimizer = build_optimizer(spec, parameters())
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["weight_decay"] == 0.3 and optimizer.param_groups[0]["amsgrad"]


def test_a_prefix_ends_at_a_dot() -> None:
    assert has_prefix("image.encoder.fc", "image.encoder") and has_prefix("image", "image")
    assert not has_prefix("image.encoder.fc", "image.enc")


def test_a_prefix_that_names_nothing_is_refused_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="'image.encoder.backbon'.*did you mean 'image.encoder.backbone'"):
        check_prefixes(["image.encoder.backbon"], NAMES, "optimizer.multipliers")


def test_freezing_follows_the_phase() -> None:
    named = parameters()
    freeze(named, ["image.encoder.backbone"])
    assert [parameter.requires_grad for _, parameter in named] == [False, True, True]
    freeze(named, [])
    assert all(parameter.requires_grad for _, parameter in named)


def test_a_factor_lowers_every_group() -> None:
    spec = OptimizerSpec(learning_rate=1.0, multipliers={"image": 0.5})
    optimizer = build_optimizer(spec, parameters())
    schedule = Schedule(spec, [PhaseSpec(epochs=1, warmup_epochs=1)], 10)
    assert schedule.apply(optimizer, 0, 4, rate_factor=0.25) == pytest.approx(0.125)
    assert sorted(group["lr"] for group in optimizer.param_groups) == pytest.approx([0.0625, 0.125])
