"""Backbones of timm, by a stand-in that speaks its interface."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from openvse.backbones import TimmVision
from openvse.errors import ModelError
from openvse.types import Inputs
from tests.naming import names, refusal
from tests.seeing import see


def make(model: str = "NCHW", **options) -> TimmVision:
    torch.manual_seed(0)
    return TimmVision(**({"model": model} | options))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "tokens"])
def test_local_features_run_row_by_row(layout: str, fake_timm) -> None:
    backbone = make(layout).eval()
    pixels = torch.randn(2, 3, 32, 32)
    grid = backbone.net.norm(backbone.net.stem(pixels))
    local = see(backbone, pixels)
    assert local.shape == (2, 16, 6) and backbone.feature_dim == 6
    torch.testing.assert_close(local[:, 1], grid[:, :, 0, 1])
    torch.testing.assert_close(local[:, 4], grid[:, :, 1, 0])


@pytest.mark.parametrize("layout", ["NCHW", "tokens"])
def test_the_image_may_have_another_size(layout: str, fake_timm) -> None:
    backbone = make(layout, image_size=48)
    assert see(backbone, torch.zeros(1, 3, 48, 48)).shape[1] == 36
    assert backbone.fingerprint == f"timm {layout}:in1k:48x48:36"
    assert make(layout, pretrained=False).fingerprint == f"timm {layout}:random:32x32:16"


def test_the_whole_image_is_resized_and_normalised(fake_timm) -> None:
    backbone = make()
    image = np.zeros((30, 90, 3), dtype=np.uint8)
    image[:, 60:] = (255, 102, 0)
    pixels = backbone.preprocess(Image.fromarray(image))
    assert pixels.shape == (3, 32, 32) and pixels.dtype == torch.float32
    assert pixels[:, 9, 0].tolist() == pytest.approx([-2.5, -1.6, -0.6])
    assert pixels[:, 9, -2].tolist() == pytest.approx([2.5, 0.0, -0.6], abs=1e-6)


def test_fine_tuning_checkpoints_as_the_library_does(fake_timm) -> None:
    assert make(fine_tune=True, gradient_checkpointing=True).net.checkpointing is True
    assert make(fine_tune=True).net.checkpointing is False
    assert make(gradient_checkpointing=True).net.checkpointing is None


def test_fine_tuning_reaches_what_the_features_need_and_no_statistics(fake_timm) -> None:
    backbone = make(fine_tune=True)
    before = backbone.net.norm.running_mean.clone()
    backbone(Inputs(torch.randn(3, 3, 32, 32), None)).local.pow(2).sum().backward()
    trained = {name for name, parameter in backbone.net.named_parameters() if parameter.grad is not None}
    assert trained == {"stem.weight", "stem.bias", "norm.weight", "norm.bias"}
    assert torch.equal(backbone.net.norm.running_mean, before)


def test_weights_of_a_saved_model_are_not_asked_for_again(fake_timm, tmp_path) -> None:
    published, random = make(), make(assets=tmp_path)
    assert not torch.equal(published.net.stem.weight, random.net.stem.weight)
    assert published.fingerprint == random.fingerprint


def test_an_unknown_model_is_named_in_one_line(fake_timm) -> None:
    assert names(refusal(ModelError, make, "resnet7"), "'resnet7'")


def test_without_timm_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert names(refusal(ModelError, make), "timm")


def test_a_torchvision_of_another_torch_is_named_in_one_line(monkeypatch, tmp_path) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist\\nmore')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    assert names(refusal(ModelError, make), "torchvision")
