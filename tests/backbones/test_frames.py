"""Clips through an image backbone: one local feature a frame, whatever their lengths.

Backbones of timm, by a stand-in that speaks its interface.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clips import write_animation
from openvse.backbones import Backbone, Frames, Precomputed, TimmVision
from openvse.backbones.base import cells
from openvse.encoders import BiGRU, ImageEncoder
from openvse.encoders.projections import GLOBAL_VECTORS, PROJECTIONS
from openvse.errors import BadVideoError, ModelError, RecipeError
from openvse.functional import pad
from openvse.media.images import read_image
from openvse.media.videos import FrameSampling, read_frames
from openvse.types import Features, Inputs
from tests.naming import names, refusal
from tests.seeing import precomputed, see

WIDTH = 5


class Small(Backbone):
    """A backbone of one layer: four cells of width 5 of an image of 16 pixels."""

    def __init__(self, *, assets: Path | None = None, fine_tune: bool = False) -> None:
        network = torch.nn.Conv2d(3, WIDTH, 8, stride=8)
        super().__init__(network, feature_dim=WIDTH, fingerprint="small", fine_tune=fine_tune)

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image.resize((16, 16)), dtype=np.float32)).permute(2, 0, 1) / 255

    def see(self, inputs: Inputs) -> Features:
        return cells(self.net(inputs.values))

    def save_assets(self, folder: Path) -> None:
        (folder / "small.txt").write_text("small")


def frames(**options) -> Frames:
    torch.manual_seed(0)
    return Frames(**({"backbone": Small} | options))


def encoding(backbone: Backbone, embed_dim: int = 6, **parts) -> ImageEncoder:
    torch.manual_seed(0)
    return ImageEncoder(backbone=backbone, embed_dim=embed_dim, **parts)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Clips of 2, 20 and 1 frames."""
    return [write_animation(tmp_path / f"{count}.gif", count, 125) for count in (2, 20, 1)]


def test_a_clip_has_a_feature_for_each_frame(paths: list[Path]) -> None:
    backbone = frames().eval()
    inputs = backbone.collate([backbone.read(path) for path in paths])
    assert inputs.values.shape == (3, 8, 3, 16, 16)
    assert inputs.mask is not None and inputs.mask.sum(dim=1).tolist() == [2, 8, 1]
    seen = backbone(inputs)
    assert seen.local.shape == (3, 8, WIDTH)
    assert not seen.local.requires_grad and torch.equal(seen.mask, inputs.mask)
    image = backbone.inner
    for clip, path in enumerate(paths):
        for place, frame in enumerate(read_frames(path)):
            four = see(image, image.preprocess(frame).unsqueeze(0))[0]
            torch.testing.assert_close(seen.local[clip, place], four.mean(dim=0), rtol=1e-4, atol=1e-5)
    assert encoding(backbone)(inputs).local.shape == (3, 8, 6)


def test_padding_costs_the_backbone_nothing(paths: list[Path]) -> None:
    backbone = frames().eval()
    inputs = backbone.collate([backbone.read(path) for path in paths])
    through = []
    backbone.inner.net.register_forward_pre_hook(lambda _, args: through.append(len(args[0])))
    backbone(inputs)
    assert sum(through) == 11


def test_an_image_is_a_clip_of_one_frame(make_photos) -> None:
    backbone = frames().eval()
    photo = make_photos(1)[0]
    pixels = backbone.preprocess(read_image(photo))
    torch.testing.assert_close(backbone.read(photo), pixels.unsqueeze(0))
    alone = see(backbone, pixels.unsqueeze(0))
    torch.testing.assert_close(alone, backbone(backbone.collate([backbone.read(photo)])).local)


@pytest.mark.medium
def test_training_draws_frames_and_one_view_for_all_of_a_clip(make_photos) -> None:
    still = np.stack([np.asarray(Image.open(make_photos(1)[0]))] * 5)
    backbone = frames()

    def read(source, seed: int) -> torch.Tensor:
        return backbone.read(source, torch.Generator().manual_seed(seed))

    views = read(still, 1)
    assert len(views) == 5 and all(torch.equal(view, views[0]) for view in views)
    assert not torch.equal(views[0], backbone.read(still)[0])
    assert torch.equal(read(still, 1), views)
    assert not torch.equal(read(still, 2), views)
    moving = np.stack([np.full((8, 8, 3), 10 * n, np.uint8) for n in range(20)])
    firsts = {float(read(moving, seed)[0].mean()) for seed in range(60)}
    assert len(firsts) == 13, "a run may begin at any of 13 frames"


def test_a_store_holds_more_than_the_model_sees(paths: list[Path]) -> None:
    backbone = frames(stored_frames=16)
    assert backbone.stored_images == 16
    stored = backbone.read(paths[1], to_store=True)
    assert len(stored) == 16 and len(backbone.read(paths[1])) == 8
    seen = encoding(backbone).eval()(Inputs(torch.randn(1, 16, WIDTH), torch.ones(1, 16, dtype=torch.bool)))
    assert seen.local.shape == (1, 8, 6)
    even = frames(sampling="even", num_frames=4)
    assert even.stored_images == 4 and len(even.read(paths[1], to_store=True)) == 4


def test_the_store_knows_backbone_and_sampling() -> None:
    names = [
        frames(**options).fingerprint
        for options in ({}, {"num_frames": 4}, {"fps": 4.0}, {"stored_frames": 9}, {"sampling": "even"})
    ]
    assert names[0] == "frames:small:8fps:64"
    assert names[0] == names[1], "how many the model sees of a store does not change the store"
    assert len(set(names)) == 4


def test_fine_tuning_reaches_the_backbone() -> None:
    encoder = encoding(frames(backbone=partial(Small, fine_tune=True)))
    assert encoder.fine_tune and encoder.fingerprint.endswith("fine_tuned")
    inputs = pad([torch.randn(2, 3, 16, 16), torch.randn(1, 3, 16, 16)])
    features = encoder(inputs)
    features.local[features.mask].pow(2).sum().backward()
    assert [name for name, parameter in encoder.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_frames": 0}, "num_frames"),
        ({"fps": 0.0}, "fps"),
        ({"num_frames": 9, "stored_frames": 8}, "stored_frames"),
        ({"backbone": Frames}, "backbone"),
        ({"backbone": lambda assets: Precomputed(feature_dim=2)}, "backbone"),
    ],
)
def test_what_makes_no_sense_is_refused(options, named: str) -> None:
    assert named in refusal(RecipeError, frames, **options)


def test_a_bad_clip_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.gif").write_bytes(b"GIF89a")
    assert names(refusal(BadVideoError, frames().read, tmp_path / "a.gif"), "a.gif")


def test_stored_frames_of_any_origin_are_limited_too() -> None:
    encoder = precomputed(5, 4, num_frames=3).eval()
    inputs = pad([torch.randn(7, 5), torch.randn(2, 5)])
    assert encoder(inputs).mask.sum(dim=1).tolist() == [3, 2]
    torch.testing.assert_close(encoder(inputs).local[0], inputs.values[0, [1, 3, 5]])
    assert names(refusal(RecipeError, Precomputed, feature_dim=5, num_frames=0), "num_frames", 0)


def test_pvse_reads_frames_and_their_global_vector() -> None:
    """PIE-Net's two inputs: raw frames, and the last states of a BiGRU over them, as the text side has them."""
    parts = {"projection": PROJECTIONS.get("none"), "global_vector": GLOBAL_VECTORS.get("bigru")}
    encoder = encoding(frames(), **parts).eval()
    inputs = pad([torch.randn(4, WIDTH), torch.randn(1, WIDTH)])
    features = encoder(inputs)
    assert features.local.shape[-1] == WIDTH and features.pooled.shape == (2, 6)
    text = BiGRU(embed_dim=6, captions=["a b"], min_count=1, output="words").eval()
    assert text(pad(text.tokenize(["a b"]))).pooled.shape == (1, 6)


def test_the_sampling_is_pvses_by_default() -> None:
    backbone = frames()
    assert backbone.seen == FrameSampling("run", 8, 8.0) and backbone.stored == FrameSampling("run", 64, 8.0)


def test_what_the_inner_backbone_needs_is_saved_with_the_model(tmp_path: Path) -> None:
    frames().save_assets(tmp_path)
    assert (tmp_path / "small.txt").is_file()


def test_weights_are_called_as_in_models_saved_before() -> None:
    names = list(encoding(frames()).state_dict())
    layers = ("backbone.backbone", "projection.linear")
    assert names == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


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
