"""Clips through an image backbone: one local feature a frame, whatever their lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clips import write_animation
from openvse.encoders import BiGRU, Frames, Precomputed
from openvse.encoders.image_encoder import LocalFeatureEncoder
from openvse.encoders.random_view import random_view
from openvse.encoders.size_augmentation import FeatureMode
from openvse.errors import BadVideoError, RecipeError
from openvse.functional import pad
from openvse.media.images import read_image
from openvse.media.videos import FrameSampling, read_frames
from openvse.types import Inputs

WIDTH = 5


class Small(LocalFeatureEncoder):
    """A backbone of one layer: four cells of width 5 of a picture of 16 pixels."""

    def __init__(
        self,
        *,
        embed_dim: int,
        assets: Path | None,
        projection: str,
        size_augmentation: FeatureMode,
        fine_tune: bool = False,
        pooled: bool = False,
    ) -> None:
        super().__init__(
            backbone=torch.nn.Conv2d(3, WIDTH, 8, stride=8),
            feature_dim=WIDTH,
            fingerprint="small",
            embed_dim=embed_dim,
            projection=projection,
            size_augmentation=size_augmentation,
            augmentation_rate=0.2,
            fine_tune=fine_tune,
            pooled=pooled,
        )

    def preprocess(self, image: Image.Image, generator: torch.Generator | None = None) -> torch.Tensor:
        view = image if generator is None else random_view(image, generator)
        return torch.from_numpy(np.array(view.resize((16, 16)), dtype=np.float32)).permute(2, 0, 1) / 255

    def extract(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.backbone(pixels).flatten(2).transpose(1, 2)


def frames(**options) -> Frames:
    torch.manual_seed(0)
    return Frames(**({"embed_dim": 6, "backbone": Small} | options))


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Clips of 2, 20 and 1 frames."""
    return [write_animation(tmp_path / f"{count}.gif", count, 125) for count in (2, 20, 1)]


def test_a_clip_has_a_feature_for_each_frame(paths: list[Path]) -> None:
    encoder = frames().eval()
    inputs = encoder.collate([encoder.read(path) for path in paths])
    assert inputs.values.shape == (3, 8, 3, 16, 16)
    assert inputs.mask is not None and inputs.mask.sum(dim=1).tolist() == [2, 8, 1]
    raw, mask = encoder.raw(inputs)
    assert raw.shape == (3, 8, WIDTH) and not raw.requires_grad and mask is inputs.mask
    image = encoder.image
    for clip, path in enumerate(paths):
        for place, frame in enumerate(read_frames(path)):
            cells = image.extract(image.preprocess(frame).unsqueeze(0))[0]
            torch.testing.assert_close(raw[clip, place], cells.mean(dim=0), rtol=1e-4, atol=1e-5)
    assert encoder(inputs).local.shape == (3, 8, 6)


def test_padding_costs_the_backbone_nothing(paths: list[Path]) -> None:
    encoder = frames().eval()
    inputs = encoder.collate([encoder.read(path) for path in paths])
    through = []
    encoder.image.backbone.register_forward_pre_hook(lambda _, args: through.append(len(args[0])))
    encoder.raw(inputs)
    assert sum(through) == 11


def test_a_picture_is_a_clip_of_one_frame(make_photos) -> None:
    encoder = frames().eval()
    photo = make_photos(1)[0]
    pixels = encoder.preprocess(read_image(photo))
    torch.testing.assert_close(encoder.read(photo), pixels.unsqueeze(0))
    alone = encoder(Inputs(pixels.unsqueeze(0), None))
    torch.testing.assert_close(alone.local, encoder(encoder.collate([encoder.read(photo)])).local)


def test_training_draws_frames_and_one_view_for_all_of_a_clip(make_photos) -> None:
    still = np.stack([np.asarray(Image.open(make_photos(1)[0]))] * 5)
    encoder = frames()

    def read(source, seed: int) -> torch.Tensor:
        return encoder.read(source, torch.Generator().manual_seed(seed))

    views = read(still, 1)
    assert len(views) == 5 and all(torch.equal(view, views[0]) for view in views)
    assert not torch.equal(views[0], encoder.read(still)[0])
    assert torch.equal(read(still, 1), views)
    assert not torch.equal(read(still, 2), views)
    moving = np.stack([np.full((8, 8, 3), 10 * n, np.uint8) for n in range(20)])
    firsts = {float(read(moving, seed)[0].mean()) for seed in range(60)}
    assert len(firsts) == 13, "a run may begin at any of 13 frames"


def test_a_store_holds_more_than_the_model_sees(paths: list[Path]) -> None:
    encoder = frames(stored_frames=16).eval()
    assert encoder.stored_pictures == 16
    stored = encoder.read(paths[1], to_store=True)
    assert len(stored) == 16 and len(encoder.read(paths[1])) == 8
    seen = encoder(Inputs(torch.randn(1, 16, WIDTH), torch.ones(1, 16, dtype=torch.bool)))
    assert seen.local.shape == (1, 8, 6)
    even = frames(sampling="even", num_frames=4)
    assert even.stored_pictures == 4 and len(even.read(paths[1], to_store=True)) == 4


def test_the_store_knows_backbone_and_sampling() -> None:
    names = [
        frames(**options).fingerprint
        for options in ({}, {"num_frames": 4}, {"fps": 4.0}, {"stored_frames": 9}, {"sampling": "even"})
    ]
    assert names[0] == "frames:small:8fps:64"
    assert names[0] == names[1], "how many the model sees of a store does not change the store"
    assert len(set(names)) == 4


def test_fine_tuning_reaches_the_backbone() -> None:
    encoder = frames(backbone=lambda **options: Small(fine_tune=True, **options))
    assert encoder.fine_tune and encoder.fingerprint.endswith("fine_tuned")
    inputs = pad([torch.randn(2, 3, 16, 16), torch.randn(1, 3, 16, 16)])
    features = encoder(inputs)
    features.local[features.mask].pow(2).sum().backward()
    assert [name for name, parameter in encoder.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_frames": 0}, "num_frames is 0"),
        ({"fps": 0.0}, "above 0"),
        ({"num_frames": 9, "stored_frames": 8}, "the third not below the first"),
        ({"backbone": Frames}, "sees pictures"),
        ({"backbone": lambda **options: Small(pooled=True, **options)}, "pooled is an option of frames"),
        ({"pooled": True, "pooled_by": "bigru", "embed_dim": 7}, "7 is odd"),
    ],
)
def test_what_makes_no_sense_is_refused(options, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        frames(**options)


def test_a_bad_clip_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.gif").write_bytes(b"GIF89a")
    with pytest.raises(BadVideoError, match=r"a.gif"):
        frames().read(tmp_path / "a.gif")


def test_stored_frames_of_any_origin_are_limited_too() -> None:
    encoder = Precomputed(
        embed_dim=4, feature_dim=5, projection="none", size_augmentation="none", num_frames=3
    ).eval()
    inputs = pad([torch.randn(7, 5), torch.randn(2, 5)])
    assert encoder(inputs).mask.sum(dim=1).tolist() == [3, 2]
    torch.testing.assert_close(encoder(inputs).local[0], inputs.values[0, [1, 3, 5]])
    with pytest.raises(RecipeError, match="num_frames is 0"):
        Precomputed(embed_dim=4, feature_dim=5, num_frames=0)


def test_pvse_reads_frames_and_their_global_vector() -> None:
    """PIE-Net's two inputs: raw frames, and the last states of a BiGRU over them, as the text side has them."""
    encoder = frames(projection="none", pooled=True, pooled_by="bigru").eval()
    inputs = pad([torch.randn(4, WIDTH), torch.randn(1, WIDTH)])
    features = encoder(inputs)
    assert features.local.shape[-1] == WIDTH and features.pooled.shape == (2, 6)
    text = BiGRU(embed_dim=6, captions=["a b"], min_count=1, output="words").eval()
    assert text(pad(text.tokenize(["a b"]))).pooled.shape == (1, 6)


def test_the_sampling_is_pvses_by_default() -> None:
    encoder = frames()
    assert encoder.seen == FrameSampling("run", 8, 8.0) and encoder.stored == FrameSampling("run", 64, 8.0)
