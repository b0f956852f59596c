"""Backbones of timm, by a stand-in that speaks its interface."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from openvse.backbones import BACKBONES
from openvse.errors import ModelError
from openvse.types import Inputs
from openvse_testing import check_part
from openvse_timm import TimmVision


class FakeTimmNetwork(nn.Module):
    """Speaks timm's interface: ``forward_features``, a data configuration, its own checkpointing."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 8, stride=8)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 2)
        self.layout = layout
        self.checkpointing: bool | None = None
        self.pretrained_cfg = {
            "input_size": (3, 32, 32),
            "mean": (0.5, 0.4, 0.3),
            "std": (0.2, 0.25, 0.5),
            "tag": "in1k",
        }
        if layout == "tokens":
            self.num_prefix_tokens = 2
            self.set_input_size = lambda img_size: None
        if layout == "NHWC":
            self.output_fmt = "NHWC"

    def set_grad_checkpointing(self, enable: bool) -> None:
        self.checkpointing = enable

    def forward_features(self, pixels: torch.Tensor) -> torch.Tensor:
        grid: torch.Tensor = self.norm(self.stem(pixels))
        if self.layout == "NHWC":
            return grid.permute(0, 2, 3, 1)
        if self.layout == "tokens":
            cells = grid.flatten(2).transpose(1, 2)
            return torch.cat([cells.mean(dim=1, keepdim=True).expand(-1, 2, -1), cells], dim=1)
        return grid


@pytest.fixture
def fake_timm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put a small library in timm's place, which needs no torchvision; it knows NCHW, NHWC and tokens."""
    library: Any = ModuleType("timm")

    def create_model(name: str, *, pretrained: bool, num_classes: int) -> FakeTimmNetwork:
        assert num_classes == 0
        if name not in ("NCHW", "NHWC", "tokens"):
            raise RuntimeError(f"Unknown model ({name})\nand more")
        torch.manual_seed(1 if pretrained else 2)
        return FakeTimmNetwork(name)

    library.create_model = create_model
    library.data = ModuleType("timm.data")
    library.data.resolve_model_data_config = lambda network: network.pretrained_cfg
    monkeypatch.setitem(sys.modules, "timm", library)
    return library


def test_it_is_known_by_its_name_and_keeps_the_contract(fake_timm: ModuleType) -> None:
    assert BACKBONES.get("timm_vision") is TimmVision
    for layout in ("NCHW", "NHWC", "tokens"):
        check_part("backbone", "timm_vision", options={"model": layout})


def make(model: str = "NCHW", **options: Any) -> TimmVision:
    torch.manual_seed(0)
    return TimmVision(**({"model": model} | options))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "tokens"])
def test_local_features_run_row_by_row(layout: str, fake_timm: ModuleType) -> None:
    backbone = make(layout).eval()
    pixels = torch.randn(2, 3, 32, 32)
    grid = backbone.net.norm(backbone.net.stem(pixels))
    local = backbone(Inputs(pixels, None)).local
    assert local.shape == (2, 16, 6) and backbone.feature_dim == 6
    torch.testing.assert_close(local[:, 1], grid[:, :, 0, 1])
    torch.testing.assert_close(local[:, 4], grid[:, :, 1, 0])


@pytest.mark.parametrize("layout", ["NCHW", "tokens"])
def test_the_image_may_have_another_size(layout: str, fake_timm: ModuleType) -> None:
    backbone = make(layout, image_size=48)
    assert backbone(Inputs(torch.zeros(1, 3, 48, 48), None)).local.shape[1] == 36
    assert backbone.fingerprint == f"timm {layout}:in1k:48x48:36"
    assert make(layout, pretrained=False).fingerprint == f"timm {layout}:random:32x32:16"


def test_the_whole_image_is_resized_and_normalised(fake_timm: ModuleType) -> None:
    backbone = make()
    image = np.zeros((30, 90, 3), dtype=np.uint8)
    image[:, 60:] = (255, 102, 0)
    pixels = backbone.preprocess(Image.fromarray(image))
    assert pixels.shape == (3, 32, 32) and pixels.dtype == torch.float32
    assert pixels[:, 9, 0].tolist() == pytest.approx([-2.5, -1.6, -0.6])
    assert pixels[:, 9, -2].tolist() == pytest.approx([2.5, 0.0, -0.6], abs=1e-6)


def test_fine_tuning_checkpoints_as_the_library_does(fake_timm: ModuleType) -> None:
    assert make(fine_tune=True, gradient_checkpointing=True).net.checkpointing is True
    assert make(fine_tune=True).net.checkpointing is False
    assert make(gradient_checkpointing=True).net.checkpointing is None


def test_fine_tuning_reaches_what_the_features_need_and_no_statistics(fake_timm: ModuleType) -> None:
    backbone = make(fine_tune=True)
    before = backbone.net.norm.running_mean.clone()
    backbone(Inputs(torch.randn(3, 3, 32, 32), None)).local.pow(2).sum().backward()
    trained = {name for name, parameter in backbone.net.named_parameters() if parameter.grad is not None}
    assert trained == {"stem.weight", "stem.bias", "norm.weight", "norm.bias"}
    assert torch.equal(backbone.net.norm.running_mean, before)


def test_weights_of_a_saved_model_are_not_asked_for_again(fake_timm: ModuleType, tmp_path: Path) -> None:
    published, random = make(), make(assets=tmp_path)
    assert not torch.equal(published.net.stem.weight, random.net.stem.weight)
    assert published.fingerprint == random.fingerprint


def test_an_unknown_model_is_named_in_one_line(fake_timm: ModuleType) -> None:
    with pytest.raises(ModelError, match="'resnet7'"):
        make("resnet7")


def test_without_timm_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match="pip install timm"):
        make()


def test_a_torchvision_of_another_torch_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist\\nmore')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ModelError, match="torchvision"):
        make()


class _Runs:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return open, (str(self.mark), "w")


def test_timm_unpickles_nothing_but_tensors(
    fake_timm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timm reads the weights of a folder without saying that only tensors are wanted."""
    torch.save({"stem": _Runs(tmp_path / "it_ran")}, tmp_path / "weights.bin")
    monkeypatch.setattr(
        fake_timm, "create_model", lambda *_, **__: torch.load(tmp_path / "weights.bin", weights_only=False)
    )
    with pytest.raises(ModelError):
        make(f"local-dir:{tmp_path}")
    assert not (tmp_path / "it_ran").exists() and "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
