"""Parameter groups with their learning rates, frozen parts, and the mean of the weights against a slow loop."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from openvse.errors import RecipeError
from openvse.specs.recipe import AverageSpec, OptimizerSpec, PhaseSpec
from openvse.tasks.run import run_recipe
from openvse.training.optimizer import Schedule, WeightAverage, build_optimizer, check_prefixes, freeze, has_prefix
from openvse.training.task import Step
from openvse.training.trainer import Trainer
from tests.tiny import Recorder, Stop, are_same, tiny_recipe

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
    with pytest.raises(RecipeError, match="'image.encoder.backbon'.*'image.encoder.backbone'"):
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


AVERAGE = {"average": {"decay": 0.5}}


def test_the_mean_is_that_of_a_slow_loop() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3))
    average = WeightAverage(AverageSpec(decay=0.3), [("w", weight)])
    expected = weight.detach().clone()
    for step in range(1, 9):
        with torch.no_grad():
            weight.add_(torch.randn(3))
        average.update()
        decay = min(0.3, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight.detach()
    before = weight.detach().clone()
    with average.in_place():
        torch.testing.assert_close(weight.detach(), expected)
    assert torch.equal(weight, before)


@pytest.mark.medium
def test_best_holds_the_mean_and_the_checkpoint_both(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    take = Trainer.take

    def remember(trainer: Trainer, batch: object, phase: int) -> Step:
        step = take(trainer, batch, phase)
        seen.append({name: weight.detach().clone() for name, weight in trainer.model.named_parameters()})
        return step

    monkeypatch.setattr(Trainer, "take", remember)
    one = {"phases": [{"epochs": 1}]}
    run_recipe(tiny_recipe(corpus, **AVERAGE, **one), tmp_path / "mean")
    weights, seen = seen, []
    run_recipe(tiny_recipe(corpus, **one), tmp_path / "plain")
    assert all(torch.equal(weight, weights[-1][name]) for name, weight in seen[-1].items())
    saved = load_file(tmp_path / "mean" / "best" / "model.safetensors")
    state = torch.load(tmp_path / "mean" / "last.pt", weights_only=True)
    plain = torch.load(tmp_path / "plain" / "last.pt", weights_only=True)
    assert "average" not in plain
    for name, mean in state["average"]["means"].items():
        assert torch.equal(saved[name], mean) and torch.equal(state["model"][name], plain["model"][name])
    name = "text.encoder.words.weight"
    expected = None
    for number, after in enumerate(weights, start=1):
        decay = min(0.5, (1 + number) / (10 + number))
        expected = after[name] * (1 - decay) + decay * (start_of(corpus, name) if expected is None else expected)
    torch.testing.assert_close(saved[name], expected)
    assert not torch.equal(saved[name], plain["model"][name])


def start_of(corpus: Path, name: str) -> torch.Tensor:
    from openvse.datasets import open_corpus
    from openvse.retrieval.build import build_model

    captions = open_corpus(corpus / "tiny.csv", require_images=False).split("train").captions
    return build_model(tiny_recipe(corpus), captions=captions).state_dict()[name]


@pytest.mark.medium
def test_a_run_with_a_mean_resumes_to_the_same_bits(corpus: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(corpus, checkpoint_every_s=1e-6, **AVERAGE)
    run_recipe(recipe, tmp_path / "whole")
    for stop in (3, 9):
        with pytest.raises(Stop):
            run_recipe(recipe, tmp_path / "parts", watcher=Recorder(stop), resume=True)
    run_recipe(recipe, tmp_path / "parts", resume=True)
    assert are_same(tmp_path / "whole", tmp_path / "parts")


def test_a_decay_that_is_none_is_refused(corpus: Path) -> None:
    with pytest.raises(RecipeError, match=r"training\.average\.decay"):
        tiny_recipe(corpus, average={"decay": 1.0})
