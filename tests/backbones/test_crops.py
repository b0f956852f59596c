"""Windows of an image through another backbone: one local feature and one box each.

Several sizes of one image: the cells of all maps in one set.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from openvse.backbones import BACKBONES, Backbone, Crops, EfficientNetLite0, Frames, Precomputed
from openvse.backbones.base import cells
from openvse.errors import RecipeError
from openvse.features.extract import extract_features
from openvse.features.store import FeatureStore
from openvse.media.images import read_image
from openvse.registry import Maker
from openvse.types import Features, Inputs
from tests.naming import names, refusal
from tests.seeing import image_encoder

WIDTH = 5
MEASURED = ((1, 1.0), (3, 1 / 2), (4, 1 / 3))
# Options of the inner backbone that is used by default.
TINY = {"pretrained": False, "image_size": 32}


class Small(Backbone):
    """Four cells of width 5 of an image of 16 pixels; the last cell of a dark image is padding."""

    def __init__(self, *, assets: Path | None = None, fine_tune: bool = False) -> None:
        torch.manual_seed(0)
        network = torch.nn.Conv2d(3, WIDTH, 8, stride=8)
        super().__init__(network, feature_dim=WIDTH, fingerprint="small", fine_tune=fine_tune)

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image.resize((16, 16)), dtype=np.float32)).permute(2, 0, 1) / 255

    def see(self, inputs: Inputs) -> Features:
        found = cells(self.net(inputs.values))
        found.mask[:, -1] = inputs.values.mean(dim=(1, 2, 3)) > 0.5
        return found

    def save_assets(self, folder: Path) -> None:
        (folder / "small.txt").write_text("small")


def crops(backbone: Maker[Backbone] = Small, **options) -> Crops:
    return Crops(backbone=backbone, **options).eval()


def features_of(backbone: Backbone, *sources) -> Features:
    found: Features = backbone(backbone.collate([backbone.read(source) for source in sources]))
    return found


def alone(inner: Backbone, image: Image.Image) -> torch.Tensor:
    """Return the mean feature that a backbone yields for one image."""
    found = inner(Inputs(inner.preprocess(image).unsqueeze(0), None))
    return found.local[0][found.mask[0]].mean(dim=0)


def spread(size: int, count: int, share: float) -> list[tuple[int, int]]:
    """Return begin and end of windows along one side of an image, from the description alone."""
    length = round(size * share)
    return [(round(begin), round(begin) + length) for begin in np.linspace(0, size - length, count)]


@pytest.mark.medium
@pytest.mark.parametrize("make", [Small, partial(EfficientNetLite0, **TINY)])
def test_each_feature_is_the_inner_backbones_mean_over_a_window(make, make_photos) -> None:
    photo = make_photos(1, size=(120, 72))[0]
    backbone, image = crops(make), Image.open(photo).convert("RGB")
    found = features_of(backbone, photo)
    assert found.local.shape == (1, 26, backbone.inner.feature_dim) and bool(found.mask.all())
    windows = [
        (left, top, right, bottom)
        for count, share in MEASURED
        for top, bottom in spread(72, count, share)
        for left, right in spread(120, count, share)
    ]
    oracle = torch.stack([alone(backbone.inner, image.crop(window)) for window in windows])
    torch.testing.assert_close(found.local[0], oracle, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.local[0, 0], alone(backbone.inner, image), rtol=0, atol=1e-6)
    assert len(oracle.unique(dim=0)) == 26


def test_a_box_covers_what_its_feature_saw() -> None:
    """A dark spot changes the windows whose boxes hold it, and no other."""
    backbone = crops(windows=((1, 1.0), (3, 0.5), (4, 0.25), (1, 0.5)))
    bright = np.full((96, 160, 3), 255, np.uint8)
    before = features_of(backbone, bright)
    assert before.boxes is not None and before.boxes.shape == (1, 27, 4)
    boxes = before.boxes[0]
    assert boxes[1].tolist() == [0, 0, 0.5, 0.5] and boxes[9].tolist() == [0.5, 0.5, 1, 1]
    assert boxes[2].tolist() == [0.25, 0, 0.75, 0.5], "row by row"
    assert boxes[-1].tolist() == [0.25, 0.25, 0.75, 0.75], "a single window lies in the middle"
    for x, y in ((0.1, 0.1), (0.6, 0.2), (0.55, 0.9), (0.9, 0.4)):
        spot = bright.copy()
        spot[round(96 * y) - 2 : round(96 * y) + 2, round(160 * x) - 2 : round(160 * x) + 2] = 0
        changed = (features_of(backbone, spot).local != before.local).any(dim=2)[0]
        left, top, right, bottom = boxes.unbind(1)
        assert torch.equal(changed, (left < x) & (x < right) & (top < y) & (y < bottom))
        assert 2 <= int(changed.sum()) < 10


@pytest.mark.medium
def test_large_images_keep_their_detail() -> None:
    """Windows come from the image itself: from a thumbnail of it a stripe of one pixel would be gone."""
    fine = np.zeros((1600, 1600, 3), np.uint8)
    fine[:16:2] = 255
    pixels = crops(windows=((1, 1.0), (100, 0.01))).read(fine)
    assert pixels[1].amax() > 0.9 and pixels[0].amax() < 0.1


def test_training_sees_windows_of_one_random_view(make_photos) -> None:
    photo = make_photos(1)[0]
    backbone = crops(windows=((1, 1.0), (2, 0.5)))

    def read(seed: int) -> torch.Tensor:
        return backbone.read(photo, torch.Generator().manual_seed(seed))

    assert torch.equal(read(1), read(1)) and not torch.equal(read(1), read(2))
    assert torch.equal(read(1)[0], backbone.inner.read(photo, torch.Generator().manual_seed(1)))
    joined = torch.cat([torch.cat([read(1)[1], read(1)[2]], 2), torch.cat([read(1)[3], read(1)[4]], 2)], 1)
    halved = torch.nn.functional.avg_pool2d(joined, 2)
    assert (halved - read(1)[0]).abs().mean() < 0.02, "the quarters make up the view"


@pytest.mark.parametrize("size", [(1, 1), (1, 100), (100, 1), (3, 2)])
def test_images_smaller_than_the_windows(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, (200, 10, 90))
    found = features_of(crops(), image)
    assert found.local.shape == (1, 26, WIDTH) and bool(found.local.isfinite().all())
    torch.testing.assert_close(found.local[0, 1:], found.local[0, :1].expand(25, -1))


@pytest.mark.medium
def test_any_number_passes_through_the_inner_backbone_in_parts(make_photos) -> None:
    backbone, photos = crops(), make_photos(11)
    sizes: list[int] = []
    backbone.inner.net.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    together = features_of(backbone, *photos)
    assert max(sizes) <= 128 and sum(sizes) == 11 * 26
    for place, photo in enumerate(photos):
        torch.testing.assert_close(together.local[place], features_of(backbone, photo).local[0])


@pytest.mark.medium
def test_its_store_has_boxes_and_gives_what_images_give(tmp_path: Path, make_photos) -> None:
    encoder = image_encoder("crops", backbone=TINY).eval()
    backbone, photos = encoder.backbone, make_photos(3)
    extract_features(backbone, [(path.name, path) for path in photos], tmp_path / "store", dtype="float32")
    store = FeatureStore(tmp_path / "store", backbone.fingerprint)
    positions = store.positions([path.name for path in photos])
    direct = features_of(backbone, *photos)
    stored = store.gather(positions)
    torch.testing.assert_close(stored.values, direct.local, rtol=0, atol=1e-6)
    assert store.has_boxes and torch.equal(store.boxes(positions), direct.boxes)
    pixels = backbone.collate([backbone.read(path) for path in photos])
    torch.testing.assert_close(encoder(stored).local, encoder(pixels).local, rtol=0, atol=1e-6)


def test_the_store_knows_inner_backbone_and_windows() -> None:
    assert crops().fingerprint == "crops:small:1x1 of 1 + 3x3 of 0.5 + 4x4 of 0.333333"
    assert crops(windows=((2, 0.6),)).fingerprint == "crops:small:2x2 of 0.6"
    assert crops(partial(Small, fine_tune=True)).fingerprint.endswith("fine_tuned")


@pytest.mark.medium
def test_the_size_of_a_window_is_the_inner_backbones() -> None:
    def side(**options) -> int:
        return image_encoder("crops", **options).backbone.inner.image_size

    assert side(backbone={"pretrained": False}) == 112, "the default's, with another option"
    assert side(backbone=TINY) == 32
    assert side(backbone={"name": "efficientnet_lite0", "pretrained": False}) == 224, "as everywhere"
    assert BACKBONES.get("crops")().fingerprint == (
        "crops:efficientnet_lite0:imagenet:112:4x4:1x1 of 1 + 3x3 of 0.5 + 4x4 of 0.333333"
    )


def test_what_follows_it_and_how_much_an_item_weighs() -> None:
    backbone = crops()
    assert (backbone.usual_projection, backbone.usual_augmentation) == ("linear", "region")
    assert backbone.gives_boxes and not backbone.covers_image and not backbone.reads_videos
    assert backbone.stored_images == 26 and crops(windows=((2, 0.6),)).stored_images == 4


@pytest.mark.medium
def test_fine_tuning_reaches_the_inner_backbone() -> None:
    encoder = image_encoder("crops", backbone=TINY | {"fine_tune": True}, windows=[[2, 0.6]])
    assert encoder.fine_tune and not image_encoder("crops", backbone=TINY).fine_tune
    encoder(Inputs(torch.randn(2, 4, 3, 32, 32), None)).local.pow(2).sum().backward()
    assert [name for name, weight in encoder.named_parameters() if weight.grad is None] == []


def test_weights_and_assets_are_the_inner_backbones(tmp_path: Path) -> None:
    names = list(image_encoder("crops", backbone=TINY).state_dict())
    inner = list(EfficientNetLite0(**TINY).state_dict())
    assert names == [*(f"backbone.backbone.{name}" for name in inner), *names[-2:]]
    assert names[-2:] == ["projection.linear.weight", "projection.linear.bias"]
    crops().save_assets(tmp_path)
    assert (tmp_path / "small.txt").is_file()


def test_frames_of_a_clip_may_be_seen_in_windows() -> None:
    clip = np.stack([np.full((20, 30, 3), value, np.uint8) for value in (10, 90, 250)])
    clip[:, :5, :5] = 255
    frames = Frames(backbone=partial(Crops, backbone=Small, windows=((2, 0.5),)), stored_frames=9).eval()
    assert frames.stored_images == 36 and frames.inner.feature_dim == WIDTH
    found = features_of(frames, clip, clip[:1])
    assert found.mask.sum(dim=1).tolist() == [3, 1]
    for place, frame in enumerate(clip):
        windows = features_of(frames.inner, frame).local[0]
        torch.testing.assert_close(found.local[0, place], windows.mean(dim=0))
    assert torch.equal(frames.preprocess(read_image(clip[0])), frames.read(clip)[0])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"windows": ()}, ["windows"]),
        ({"windows": ((0, 0.5),)}, ["windows", "0, 0.5"]),
        ({"windows": ((2, 0.5), (3, 0.0))}, ["windows", "3, 0"]),
        ({"windows": ((2, 1.5),)}, ["(2, 1.5)"]),
        ({"windows": ((2, float("nan")),)}, ["(2, nan)"]),
        ({"backbone": Frames}, ["backbone", "frames"]),
        ({"backbone": lambda assets: Precomputed(feature_dim=2)}, ["backbone"]),
    ],
)
def test_what_makes_no_sense_is_refused(options, named: list[str]) -> None:
    assert names(refusal(RecipeError, crops, **options), *named)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"windows": [[2.5, 0.5]]}, [".windows"]),
        ({"windows": [[2, 0.5, 1]]}, [".windows"]),
        ({"windows": [[2, 2.0]]}, [":", "windows", "(2, 2)"]),
        ({"backbone": TINY | {"image_size": 8}}, [".backbone:", "image_size", 8]),
        ({"backbone": {"imagesize": 64}}, [".backbone.imagesize"]),
        ({"image_size": 64}, [".image_size"]),
        ({"backbone": {"name": "precomputed", "feature_dim": 4}}, [":", "backbone"]),
    ],
)
def test_faults_in_a_recipe_name_their_place(options, named: list[object]) -> None:
    refused = refusal(RecipeError, image_encoder, "crops", **options)
    assert names(refused, f"image.encoder{named[0]}", *named[1:])


@pytest.mark.medium
def test_each_map_is_that_of_its_own_size(make_photos) -> None:
    photos = make_photos(2)
    both = EfficientNetLite0(scales=(64, 128)).eval()
    found = both(both.collate([both.read(path) for path in photos]))
    assert found.local.shape == (2, 4 + 16, 1280) and bool(found.mask.all())
    for size, place in ((64, slice(0, 4)), (128, slice(4, 20))):
        one = EfficientNetLite0(image_size=size).eval()
        alone = one(one.collate([one.read(path) for path in photos]))
        torch.testing.assert_close(found.local[:, place], alone.local, rtol=1e-4, atol=1e-4)


def test_boxes_are_the_cells() -> None:
    backbone = EfficientNetLite0(scales=(96, 32), pretrained=False).eval()
    boxes = backbone(Inputs(torch.zeros(2, 3, 128, 96), None)).boxes
    assert boxes is not None and boxes.shape == (2, 10, 4)
    torch.testing.assert_close(boxes[0, 1], torch.tensor([1 / 3, 0, 2 / 3, 1 / 3]))
    torch.testing.assert_close(boxes[1, 3], torch.tensor([0, 1 / 3, 1 / 3, 2 / 3]))
    assert boxes[0, 9].tolist() == [0, 0, 1, 1]


@pytest.mark.medium
def test_the_store_knows_the_scales_and_holds_boxes(tmp_path: Path, make_photos) -> None:
    backbone = image_encoder("efficientnet_lite0", scales=[32, 64], pretrained=False).eval().backbone
    assert backbone.fingerprint == "efficientnet_lite0:random:32+64:1x1+2x2"
    assert backbone.gives_boxes and not backbone.covers_image and not backbone.any_size
    extract_features(backbone, [(path.name, path) for path in make_photos(2)], tmp_path / "store")
    store = FeatureStore(tmp_path / "store", backbone.fingerprint)
    assert store.has_boxes and store.boxes(store.positions(["photo_0.jpg"])).shape == (1, 5, 4)


@pytest.mark.medium
def test_it_trains_at_all_scales() -> None:
    backbone = EfficientNetLite0(scales=(32, 64), pretrained=False, fine_tune=True).train()
    backbone(Inputs(torch.randn(1, 3, 96, 64), None)).local.pow(2).sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scales": (64, 64)}, ["scales", 64, 64]),
        ({"scales": ()}, ["scales", "()"]),
        ({"scales": (64,), "image_size": 64}, ["image_size", 64]),
        ({"scales": (64, 16)}, ["scales", 16, 32]),
    ],
)
def test_scales_that_make_no_sense_are_refused(options, named: list[object]) -> None:
    assert names(refusal(RecipeError, EfficientNetLite0, pretrained=False, **options), *named)
