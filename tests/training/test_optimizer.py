"""Parameter groups, frozen parts, and the learning rate of each step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from openvse.errors import RecipeError
from openvse.specs import OptimizerSpec, PhaseSpec
from openvse.training.optimizer import Schedule, build_optimizer, check_prefixes, freeze, has_prefix

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


def test_learning_rate_of_vse_infinity() -> None:
    phases = [
        PhaseSpec(epochs=1),
        PhaseSpec(epochs=14, warmup_epochs=1),
        PhaseSpec(epochs=10, learning_rate=5e-5),
    ]
    schedule = Schedule(OptimizerSpec(learning_rate=5e-4), phases, steps_per_epoch=10)
    assert schedule.num_epochs == 25
    assert [schedule.phase_index(epoch) for epoch in (0, 1, 14, 15, 24)] == [0, 1, 1, 2, 2]
    assert schedule.learning_rate(0, 3) == 5e-4
    warmup = [schedule.learning_rate(1, step) for step in range(10)]
    assert warmup == pytest.approx([5e-4 * (step + 1) / 10 for step in range(10)])
    assert schedule.learning_rate(2, 0) == 5e-4
    assert schedule.learning_rate(15, 0) == 5e-5
    with pytest.raises(IndexError):
        schedule.learning_rate(25, 0)


def test_a_factor_lowers_every_group() -> None:
    spec = OptimizerSpec(learning_rate=1.0, multipliers={"image": 0.5})
    optimizer = build_optimizer(spec, parameters())
    schedule = Schedule(spec, [PhaseSpec(epochs=1, warmup_epochs=1)], 10)
    assert schedule.apply(optimizer, 0, 4, rate_factor=0.25) == pytest.approx(0.125)
    assert sorted(group["lr"] for group in optimizer.param_groups) == pytest.approx([0.0625, 0.125])


def test_warmup_may_last_part_of_an_epoch() -> None:
    schedule = Schedule(OptimizerSpec(learning_rate=1.0), [PhaseSpec(epochs=2, warmup_epochs=0.5)], 10)
    assert [schedule.learning_rate(0, step) for step in (0, 4, 5)] == pytest.approx([0.2, 1.0, 1.0])
