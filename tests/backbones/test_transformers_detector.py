"""Regions: the states of the queries that a detector is surest of."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from openvse.backbones import TransformersDetector
from openvse.encoders import ImageEncoder
from openvse.errors import ModelError, RecipeError
from openvse.features.extract import extract_features
from openvse.features.store import FeatureStore
from openvse.types import Inputs
from tests.seeing import see

pytestmark = pytest.mark.medium

FAMILIES = ("detr", "rt_detr", "yolos")
QUERIES = 7


@cache
def make(folder: str, **options) -> TransformersDetector:
    torch.manual_seed(0)
    fixed = {"model": folder, "num_regions": 4, "image_size": 64}
    return TransformersDetector(**(fixed | options)).eval()


def images(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(3))


def published(backbone: TransformersDetector, pixels: torch.Tensor, size: tuple[int, int]) -> list[dict]:
    """Return what the library's own reading of the detector's output says, in pixels of ``size``."""
    from transformers import AutoImageProcessor

    with torch.no_grad():
        found = backbone.net(pixel_values=pixels)
    processor = AutoImageProcessor.from_pretrained(backbone.net.config._name_or_path, backend="pil")
    return processor.post_process_object_detection(found, threshold=0.0, target_sizes=[size] * len(pixels))


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_boxes_are_those_the_library_reads(family: str, detector_checkpoint) -> None:
    backbone = make(detector_checkpoint(family), num_regions=QUERIES)
    pixels = images()
    _, scores, boxes = backbone.detect(pixels)
    for row, reading in enumerate(published(backbone, pixels, (200, 400))):
        # RT-DETR's own reading lists a query once for each class that it may be, and only the best of all.
        listed = scores[row] >= reading["scores"].min()
        assert listed[0] and (family == "rt_detr" or listed.all())
        for score, box in zip(scores[row, listed], boxes[row, listed], strict=True):
            close = reading["boxes"][(reading["scores"] - score).abs() < 1e-5] / torch.tensor([400, 200] * 2)
            assert (close.clamp(0, 1) - box).abs().amax(dim=1).min() < 1e-5
        assert scores[row, 0] == pytest.approx(reading["scores"].max().item())
    assert (scores.diff(dim=1) <= 0).all()
    assert scores.std() > 1e-3, "queries of a detector that tells nothing apart prove nothing"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_region_is_the_state_of_its_query(family: str, detector_checkpoint) -> None:
    backbone = make(detector_checkpoint(family))
    pixels = images()
    with torch.no_grad():
        found = backbone.net(pixel_values=pixels)
    chances = found.logits.sigmoid() if family == "rt_detr" else found.logits.softmax(-1)[..., :4]
    local, features = see(backbone, pixels), backbone(Inputs(pixels, None))
    assert local.shape == (2, 4, 16) and torch.equal(local, features.local)
    for row in range(2):
        order = chances[row].amax(dim=-1).argsort(descending=True)[:4]
        states = found.last_hidden_state[row, -QUERIES:]
        assert torch.equal(local[row], states[order])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_and_its_images_alone_agree(family: str, detector_checkpoint) -> None:
    backbone = make(detector_checkpoint(family))
    pixels = images(3)
    together = see(backbone, pixels)
    for row in range(3):
        torch.testing.assert_close(see(backbone, pixels[row : row + 1])[0], together[row], rtol=0, atol=1e-4)


def test_unsure_regions_are_masked_but_never_all(detector_checkpoint) -> None:
    backbone = make(detector_checkpoint("detr"), num_regions=QUERIES)
    pixels = images()
    _, scores, _ = backbone.detect(pixels)
    between = float(scores[0, 2:4].mean())
    some = make(detector_checkpoint("detr"), num_regions=QUERIES, min_score=between)
    mask = some(Inputs(pixels, None)).mask
    assert torch.equal(mask[:, 1:], scores[:, 1:] >= between) and mask[0].tolist() == [True] * 3 + [False] * 4
    features = some(Inputs(pixels, None))
    assert torch.equal(features.mask, mask)
    none = make(detector_checkpoint("detr"), num_regions=QUERIES, min_score=1.0)
    assert none(Inputs(pixels, None)).mask.sum(dim=1).tolist() == [1, 1]


def test_a_store_holds_the_sure_regions_alone(detector_checkpoint, make_photos, tmp_path: Path) -> None:
    backbone = make(detector_checkpoint("detr"), num_regions=QUERIES)
    paths = make_photos(3)
    pixels = torch.stack([backbone.preprocess(Image.open(path)) for path in paths])
    _, scores, boxes = backbone.detect(pixels)
    middle = float(scores.median()) + 1e-6
    backbone = make(detector_checkpoint("detr"), num_regions=QUERIES, min_score=middle)
    images = [(path.name, path) for path in paths]
    report = extract_features(backbone, images, tmp_path / "store", batch_size=2, dtype="float32")
    assert report.done == 3
    store = FeatureStore(tmp_path / "store", backbone.fingerprint)
    stored = store.gather(store.positions([name for name, _ in images]))
    sure = (scores >= middle).sum(dim=1).clamp(min=1)
    assert stored.mask.sum(dim=1).tolist() == sure.tolist() and len(set(sure.tolist())) > 1
    direct = backbone(Inputs(pixels, None))
    again = ImageEncoder(backbone=backbone, embed_dim=8).eval().local_features(stored)
    torch.testing.assert_close(again.local[again.mask], direct.local[direct.mask], rtol=0, atol=1e-4)
    kept = store.boxes(store.positions([name for name, _ in images]))
    torch.testing.assert_close(kept[stored.mask], boxes[:, : kept.shape[1]][stored.mask], rtol=0, atol=1e-4)


def test_the_whole_image_is_resized_to_a_square(detector_checkpoint, make_photos) -> None:
    backbone = make(detector_checkpoint("rt_detr"), image_size=96)
    image = np.zeros((30, 90, 3), dtype=np.uint8)
    image[:, 85:] = 255
    pixels = backbone.preprocess(Image.fromarray(image))
    assert pixels.shape == (3, 96, 96)
    assert (pixels[0, :, -2] > 2).all() and (pixels[0, :, 0] < 0).all()
    photo = Image.open(make_photos(1)[0])
    views = [backbone.read(photo, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(views[0], views[1]) and not torch.equal(views[0], views[2])


def test_the_detector_stays_frozen(detector_checkpoint) -> None:
    backbone = make(detector_checkpoint("rt_detr"))
    encoder = ImageEncoder(backbone=backbone, embed_dim=6).train()
    assert not any(module.training for module in backbone.net.modules())
    encoder(Inputs(images(), None)).local.sum().backward()
    backbone.eval()
    assert all(parameter.grad is None for parameter in backbone.net.parameters())


def test_the_fingerprint_says_what_was_kept(detector_checkpoint) -> None:
    folder = detector_checkpoint("detr")
    prints = {make(folder, **options).fingerprint for options in ({}, {"num_regions": 5}, {"min_score": 0.1})}
    assert len(prints) == 3
    assert all(text.startswith("detr@") and ":64x64:best " in text for text in prints)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_regions": 8}, "num_regions.*8.*7.*1.*7"),
        ({"num_regions": 0}, "num_regions is 0"),
        ({"min_score": 1.5}, "min_score.*1.5"),
    ],
)
def test_impossible_wishes_are_refused(options: dict, message: str, detector_checkpoint) -> None:
    with pytest.raises(RecipeError, match=message):
        make(detector_checkpoint("detr"), **options)


def test_what_is_no_detector_is_named_in_one_line(vision_checkpoint, tmp_path) -> None:
    for folder in (vision_checkpoint("vit"), str(tmp_path / "missing")):
        with pytest.raises(ModelError, match="detector") as caught:
            make(folder)
        assert "\n" not in str(caught.value)


def test_a_missing_library_is_named_in_one_line(detector_checkpoint, monkeypatch) -> None:
    """DETR's first checkpoints want timm for their backbone."""
    import transformers

    def refuse(*_: object, **__: object) -> None:
        raise ImportError("\nTimmBackbone requires the timm library\nbut it was not found")

    monkeypatch.setattr(transformers.AutoModelForObjectDetection, "from_pretrained", refuse)
    with pytest.raises(ModelError, match="TimmBackbone") as caught:
        make.__wrapped__(detector_checkpoint("detr"))
    assert "\n" not in str(caught.value)
