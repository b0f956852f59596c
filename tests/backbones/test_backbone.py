"""What all backbones share: the state of their network under its own names, its mode, and gradients."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn

from openvse.backbones import Backbone, Crops, EfficientNetLite0, Frames
from openvse.backbones.base import all_real, cells
from openvse.backbones.pretrained import TransformersVision
from openvse.errors import ModelError
from openvse.media.images import read_image
from openvse.types import Features, Inputs
from tests.naming import names, refusal
from tests.seeing import see


class Net(nn.Module):
    """A network with everything a state dict may hold, and a mode that its own ``train`` decides about."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.stem = nn.Conv2d(3, 4, 2, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("kept", torch.ones(1))
        self.register_buffer("derived", torch.ones(1), persistent=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        grid: torch.Tensor = self.norm(self.stem(pixels)) * self.scale
        return grid


class Plain(Backbone):
    """A backbone around it."""

    def __init__(self, **options: bool) -> None:
        super().__init__(Net(), feature_dim=4, fingerprint="plain", **options)

    def preprocess(self, image: object) -> torch.Tensor:
        raise NotImplementedError

    def see(self, inputs: Inputs) -> Features:
        return cells(self.net(inputs.values))


def test_weights_keep_the_names_that_the_network_gives_them() -> None:
    plain = Plain()
    assert list(plain.state_dict()) == list(plain.net.state_dict()) == list(Net().state_dict())
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in Net().named_parameters()]
    assert "derived" in dict(plain.named_buffers()) and "derived" not in plain.state_dict()
    assert [name for name, _ in plain.named_children()] == ["stem", "norm"]


def test_network_and_backbone_stay_one(tmp_path) -> None:
    plain, pixels = Plain(), torch.randn(1, 3, 4, 4)
    plain.load_state_dict({name: weight * 3 for name, weight in plain.state_dict().items()})
    assert float(plain.net.scale) == 6
    plain.double()
    assert plain.net.scale.dtype == plain.net.derived.dtype == torch.float64
    for other in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert torch.equal(see(other, pixels.double()), see(plain, pixels.double()))
        other.load_state_dict({name: weight * 0 for name, weight in other.state_dict().items()})
        assert float(other.net.scale) == 0 and float(plain.net.scale) == 6


def test_the_mode_of_a_frozen_network_and_of_one_that_trains() -> None:
    frozen, tuned = Plain().train(), Plain(fine_tune=True).train()
    modules = (frozen.net, frozen.net.stem, frozen.net.norm)
    assert [module.training for module in modules] == [False] * 3 and not frozen.training
    assert tuned.training and tuned.net.training and tuned.net.stem.training and not tuned.net.norm.training
    assert not tuned.eval().net.training


def test_only_a_network_that_trains_makes_a_graph() -> None:
    pixels = torch.randn(2, 3, 4, 4)
    assert not see(Plain().requires_grad_(True), pixels).requires_grad
    tuned = Plain(fine_tune=True)
    assert see(tuned, pixels).requires_grad
    with torch.no_grad():
        assert not see(tuned, pixels).requires_grad


def test_the_fingerprint_says_whether_the_network_trains() -> None:
    assert (Plain().fingerprint, Plain(fine_tune=True).fingerprint) == ("plain", "plain:fine_tuned")


def test_what_is_decoded_smaller(tmp_path) -> None:
    def saved(size: tuple[int, int]) -> Path:
        path = tmp_path / f"{size[0]}.jpg"
        Image.effect_mandelbrot(size, (-2, -1.5, 1, 1.5), 50).convert("RGB").save(path, quality=95)
        return path

    large, small = saved((520, 260)), saved((130, 60))
    free, exact, smaller = (EfficientNetLite0(image_size=32, exact_decode=each) for each in (None, True, False))
    assert (free.fingerprint, f"{free.fingerprint}:smaller JPEGs") == (exact.fingerprint, smaller.fingerprint)
    whole = free.preprocess(read_image(large))
    shrunk = free.preprocess(read_image(large, shorter_side=32))
    assert not torch.equal(whole, shrunk)
    for backbone, stored, asked in ((free, whole, shrunk), (exact, whole, whole), (smaller, shrunk, shrunk)):
        assert torch.equal(backbone.read(large, to_store=True), stored)
        assert torch.equal(backbone.read(large, exact=False), asked)
        assert torch.equal(backbone.read(small, exact=False), free.preprocess(read_image(small)))
        view = backbone.read(large, torch.Generator().manual_seed(0), exact=False)
        assert torch.equal(view, free.read(large, torch.Generator().manual_seed(0)))
    assert torch.equal(Frames(backbone=lambda assets: smaller).read(large)[0], shrunk)
    crops = Crops(backbone=partial(EfficientNetLite0, image_size=32), windows=((2, 0.3),))
    assert (crops.shorter_side, Plain().shorter_side) == (107, None)


@pytest.mark.parametrize(
    ("side", "size", "more"),
    [
        (224, {"shortest_edge": 224}, {}),
        (256, {"shortest_edge": 224}, {"crop_pct": 0.875}),
        (384, {"height": 300, "width": 384}, {}),
        (None, {"longest_edge": 224}, {}),
        (None, {"shortest_edge": 224}, {"do_resize": False}),
    ],
)
def test_the_side_that_a_checkpoint_reads(side: int | None, size: dict[str, int], more: dict[str, float]) -> None:
    processor = SimpleNamespace(**{"do_resize": True, "size": size} | more)
    told = TransformersVision.shorter_side.fget  # type: ignore[attr-defined]
    assert told(SimpleNamespace(processor=processor, image_size=None)) == side
    assert told(SimpleNamespace(processor=processor, image_size=48)) == 48


def test_checkpointing_needs_blocks() -> None:
    refused = refusal(ModelError, Plain, fine_tune=True, gradient_checkpointing=True)
    assert names(refused, "gradient_checkpointing")
    assert Plain(gradient_checkpointing=True).feature_dim == 4, "a frozen network needs none"


def test_features_of_a_grid_run_row_by_row() -> None:
    grid = torch.arange(12.0).view(1, 2, 2, 3)
    assert cells(grid).local[0].tolist() == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]
    assert all_real(torch.zeros(2, 3, 4)).mask.shape == (2, 3)
