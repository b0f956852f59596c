import json
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil, ConvNextImageProcessorPil, ViTImageProcessorPil

from openvse.backbones.base import levels_of, of_levels
from openvse.backbones.pretrained import TransformersVision, _seen, numbers_of, pixels_of
from openvse.errors import ModelError
from openvse.media.images import probe_image
from openvse.types import Inputs
from tests.naming import names, refusal
from tests.seeing import image_encoder, see

pytestmark = pytest.mark.medium

FAMILIES = {
    "vit": (32, 16),
    "dinov2": (28, 16),
    "resnet": (64, 4),
    "convnext": (64, 4),
    "clip_vision": (32, 16),
    "siglip_vision": (32, 16),
    "swin": (32, 16),
}  # pixels, local features


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_its_cells_or_patches(family: str, vision_checkpoint, make_photos) -> None:
    side, count = FAMILIES[family]
    backbone = TransformersVision(model=vision_checkpoint(family))
    pixels = backbone.preprocess(Image.open(make_photos(1)[0]))
    assert pixels.shape == (3, side, side)
    features = backbone.eval()(Inputs(pixels.unsqueeze(0), None))
    assert features.local.shape == (1, count, 16) and features.mask.all()
    assert backbone.feature_dim == 16
    assert backbone.fingerprint.endswith(f":{side}x{side}:{count}")


@pytest.mark.parametrize("family", ["vit", "dinov2", "clip_vision"])
def test_the_class_token_is_left_out(family: str, vision_checkpoint) -> None:
    backbone = TransformersVision(model=vision_checkpoint(family))
    side, _ = FAMILIES[family]
    pixels = torch.randn(2, 3, side, side)
    tokens = backbone.net(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(see(backbone, pixels), tokens[:, 1:])


@pytest.mark.parametrize("family", ["vit", "dinov2"])
def test_the_class_token_comes_first_where_it_is_wanted(family: str, vision_checkpoint) -> None:
    backbone = TransformersVision(model=vision_checkpoint(family), class_token=True)
    side, _ = FAMILIES[family]
    pixels = torch.randn(2, 3, side, side)
    tokens = backbone.net(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(see(backbone, pixels), tokens)
    plain = TransformersVision(model=vision_checkpoint(family))
    assert backbone.fingerprint == f"{plain.fingerprint.rpartition(':')[0]}:17 with class token"


@pytest.mark.parametrize("family", ["resnet", "swin"])
def test_a_network_without_a_class_token_says_so(family: str, vision_checkpoint) -> None:
    refused = refusal(ModelError, TransformersVision, model=vision_checkpoint(family), class_token=True)
    assert names(refused, "class_token")


def test_augmentation_spares_the_class_token_and_the_global_vector_is_made_of_it(vision_checkpoint) -> None:
    parts = {"augmentation": {"name": "region", "rate": 0.95}, "global_vector": "mean"}
    encoder = image_encoder("transformers_vision", model=vision_checkpoint("vit"), class_token=True, **parts)
    pixels = torch.randn(20, 3, 32, 32)
    features, raw = encoder(Inputs(pixels, None)), see(encoder.backbone, pixels)
    assert features.mask[:, 0].all() and features.mask[:, 1:].float().mean() < 0.2
    torch.testing.assert_close(features.pooled, encoder.global_projection(raw[:, :1], features.mask[:, :1]))
    stored = Inputs(raw, torch.ones(20, 17, dtype=torch.bool))
    torch.testing.assert_close(encoder.eval()(stored).pooled, features.pooled)


def test_register_tokens_are_left_out(tmp_path, vision_checkpoint) -> None:
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    layers = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Dinov2WithRegistersConfig(**layers, image_size=28, patch_size=7, num_register_tokens=3)
    Dinov2WithRegistersModel(config).save_pretrained(tmp_path)
    shutil.copy(Path(vision_checkpoint("dinov2")) / "preprocessor_config.json", tmp_path)
    backbone = TransformersVision(model=str(tmp_path))
    pixels = torch.randn(1, 3, 28, 28)
    tokens = backbone.net(pixel_values=pixels).last_hidden_state
    assert tokens.shape[1] == 1 + 3 + 16
    torch.testing.assert_close(see(backbone, pixels), tokens[:, 4:])
    with_class = see(TransformersVision(model=str(tmp_path), class_token=True), pixels)
    torch.testing.assert_close(with_class, tokens[:, [0, *range(4, 20)]])


def test_cells_run_row_by_row(vision_checkpoint) -> None:
    backbone = TransformersVision(model=vision_checkpoint("resnet"))
    pixels = torch.randn(1, 3, 64, 64)
    grid = backbone.net(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(see(backbone, pixels)[0, 1], grid[0, :, 0, 1])
    torch.testing.assert_close(see(backbone, pixels)[0, 2], grid[0, :, 1, 0])


def test_a_centre_crop_is_cut_as_the_checkpoint_says(vision_checkpoint) -> None:
    backbone = TransformersVision(model=vision_checkpoint("dinov2"))
    image = np.zeros((32, 64, 3), dtype=np.uint8)
    image[:, 18:46] = 255  # 28 columns in the middle
    assert (backbone.preprocess(Image.fromarray(image))[0] > 2).all()


PROCESSORS = pytest.mark.parametrize(
    "processor",
    [
        CLIPImageProcessorPil(),
        ViTImageProcessorPil(),
        ConvNextImageProcessorPil(size={"shortest_edge": 384}),
        ConvNextImageProcessorPil(size={"shortest_edge": 224}),
    ],
    ids=["crop", "square", "convnext_whole", "convnext_crop"],
)


@PROCESSORS
def test_levels_and_a_table_are_the_pixels_of_the_checkpoint(processor) -> None:
    numbers = numbers_of(processor, None)
    only_it_knows = hasattr(processor, "crop_pct") and processor.size["shortest_edge"] < 384
    assert (numbers is None) is only_it_knows
    for number in () if numbers is None else range(12):
        image = probe_image(number, (40 + 53 * number % 400, 500 - 31 * number))
        seen = _seen(processor, image, None)
        assert seen is not None and torch.equal(of_levels(levels_of(seen), numbers), pixels_of(processor, image, None))


@PROCESSORS
def test_a_line_becomes_the_pixels_of_a_less_extreme_one(processor) -> None:
    """A whole line of 1 x 65,000 pixels, enlarged as its processor says, would take up to 13 GB."""
    for size in ((1, 65_000), (65_000, 1)):
        pixels = pixels_of(processor, Image.new("RGB", size, (200, 10, 90)), None)
        one = pixels_of(processor, Image.new("RGB", (20, 20), (200, 10, 90)), None)
        torch.testing.assert_close(pixels, one)
    ramp = np.linspace(0, 255, 340).astype(np.uint8)
    long = Image.fromarray(np.tile(ramp[None, :, None], (20, 1, 3)))
    with patch("openvse.media.resizing.LONG", 100):
        expected = pixels_of(processor, long, None)
    torch.testing.assert_close(pixels_of(processor, long, None), expected, rtol=0, atol=0.05)


@pytest.mark.parametrize(("family", "size", "count"), [("vit", 48, 36), ("dinov2", 42, 36), ("resnet", 96, 9)])
def test_another_image_size_keeps_the_whole_image(family: str, size: int, count: int, vision_checkpoint) -> None:
    backbone = TransformersVision(model=vision_checkpoint(family), image_size=size)
    image = np.zeros((30, 90, 3), dtype=np.uint8)
    image[:, 85:] = 255
    pixels = backbone.preprocess(Image.fromarray(image))
    assert pixels.shape == (3, size, size)
    assert (pixels[0, :, -2] > 2).all() and (pixels[0, :, 0] < 0).all()
    assert see(backbone, pixels.unsqueeze(0)).shape[1] == count
    assert backbone.fingerprint.endswith(f":{size}x{size}:{count}")


@pytest.mark.parametrize("family", FAMILIES)
def test_fine_tuning_reaches_every_trainable_parameter(family: str, vision_checkpoint) -> None:
    backbone = TransformersVision(model=vision_checkpoint(family), fine_tune=True)
    side, _ = FAMILIES[family]
    features = backbone(Inputs(torch.randn(3, 3, side, side), None))
    features.local[features.mask].pow(2).sum().backward()
    trainable = {name: p for name, p in backbone.named_parameters() if p.requires_grad}
    assert [name for name, p in trainable.items() if p.grad is None] == []
    assert len(trainable) > 10
    assert not any("pooler" in name or "mask_token" in name for name in trainable)


def test_frozen_is_the_default(vision_checkpoint) -> None:
    backbone = TransformersVision(model=vision_checkpoint("resnet"))
    assert not any(parameter.requires_grad for parameter in backbone.net.parameters())
    assert not any(module.training for module in backbone.train().net.modules())


def test_half_precision_checkpoints_load_in_single(tmp_path, vision_checkpoint) -> None:
    from transformers import AutoModel

    source = Path(vision_checkpoint("vit"))
    AutoModel.from_pretrained(source).half().save_pretrained(tmp_path)
    shutil.copy(source / "preprocessor_config.json", tmp_path)
    backbone = TransformersVision(model=str(tmp_path))
    assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}


def test_the_fingerprint_follows_weights_and_preprocessing_not_the_place(tmp_path, vision_checkpoint) -> None:
    source = Path(vision_checkpoint("vit"))
    moved, other = tmp_path / "moved", tmp_path / "other"
    shutil.copytree(source, moved)
    shutil.copytree(source, other)
    preprocessing = json.loads((other / "preprocessor_config.json").read_text()) | {"image_mean": [0.1, 0.1, 0.1]}
    (other / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    prints = [TransformersVision(model=str(path)).fingerprint for path in (source, moved, other)]
    assert prints[0].startswith("vit@") and prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("damage", ["config.json", "fingerprint.txt"])
def test_incomplete_assets_are_named(damage: str, tmp_path, vision_checkpoint) -> None:
    TransformersVision(model=vision_checkpoint("vit")).save_assets(tmp_path)
    (tmp_path / damage).unlink()
    assert names(refusal(ModelError, TransformersVision, model="gone", assets=tmp_path), tmp_path)


def test_what_is_no_checkpoint_is_named_in_one_line(tmp_path) -> None:
    for source in (str(tmp_path), str(tmp_path / "missing")):
        assert names(refusal(ModelError, TransformersVision, model=source), source)


def test_a_text_model_is_refused(bert_checkpoint, vision_checkpoint, tmp_path) -> None:
    shutil.copytree(bert_checkpoint, tmp_path / "bert")
    shutil.copy(Path(vision_checkpoint("vit")) / "preprocessor_config.json", tmp_path / "bert")
    assert names(refusal(ModelError, TransformersVision, model=str(tmp_path / "bert")), tmp_path / "bert")
