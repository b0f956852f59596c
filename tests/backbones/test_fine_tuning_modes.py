import torch
from torch import nn

from openvse.backbones.fine_tuning import freeze_unreached, set_backbone_mode


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(4)))


def modes(module: nn.Module) -> list[bool]:
    return [part.training for part in (module[0], module[1], module[2][0], module[2][1])]


def test_a_frozen_backbone_never_trains() -> None:
    module = network()
    set_backbone_mode(module, training=True, fine_tune=False)
    assert modes(module) == [False] * 4


def test_fine_tuning_trains_all_but_batchnorm() -> None:
    module = network()
    set_backbone_mode(module, training=True, fine_tune=True)
    assert modes(module) == [True, False, True, False]
    set_backbone_mode(module, training=False, fine_tune=True)
    assert modes(module) == [False] * 4


def test_running_statistics_stand_still_while_weights_learn() -> None:
    module = network()
    set_backbone_mode(module, training=True, fine_tune=True)
    module(torch.randn(8, 3)).sum().backward()
    assert module[1].running_mean.abs().max() == 0 and module[1].num_batches_tracked == 0
    assert module[1].weight.grad is not None


def test_only_parameters_behind_the_output_keep_training() -> None:
    module = nn.ModuleDict({"used": nn.Linear(3, 4), "zero": nn.Linear(4, 4), "head": nn.Linear(4, 2)})
    output = module["zero"](module["used"](torch.zeros(1, 3)) * 0)
    freeze_unreached(module, output)
    trains = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert trains == {"used.weight", "used.bias", "zero.weight", "zero.bias"}


def test_what_was_frozen_stays_frozen_and_nothing_accumulates() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    freeze_unreached(module, module(torch.ones(1, 3)))
    assert [parameter.requires_grad for parameter in module.parameters()] == [False, False, True, True]
    assert all(parameter.grad is None for parameter in module.parameters())
