"""Any vision backbone of the ``transformers`` library."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from openvse.encoders.backbone import freeze_unreached
from openvse.encoders.image_encoder import LocalFeatureEncoder
from openvse.encoders.pretrained import identify, load_backbone, load_or_explain
from openvse.encoders.random_view import random_view
from openvse.encoders.size_augmentation import FeatureMode
from openvse.errors import ModelError
from openvse.files import write_whole

FINGERPRINT_FILE = "fingerprint.txt"


class TransformersVision(LocalFeatureEncoder):
    """Patch tokens of a vision transformer, or the cells of a network's last feature map.

    ViT and DINOv2 give one feature a patch, without class and register tokens; ResNet and ConvNeXt give one
    a cell of their last feature map. Preprocessing is the checkpoint's own, done by Pillow alone.

    Args:
        embed_dim: D.
        model: hub id or local folder of the checkpoint.
        assets: a saved model's folder: the architecture is built from it, ``model`` is not read.
        fine_tune: train the backbone; its BatchNorm statistics stay as they are.
        image_size: side in pixels of the square that the whole picture is resized to; None does what the
            checkpoint's preprocessing says (which may cut the rim off).
        projection: a name of ``PROJECTIONS``.
        size_augmentation: none, region or grid.
        augmentation_rate: probability that a local feature is hidden in training.
        pooled: yield a global vector too, one linear layer of the mean raw feature; PIE-Net needs it.

    Raises:
        ModelError: the checkpoint cannot be loaded, or yields no local features from pixels alone.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        model: str,
        assets: Path | None = None,
        fine_tune: bool = False,
        image_size: int | None = None,
        projection: str = "linear",
        size_augmentation: FeatureMode = "grid",
        augmentation_rate: float = 0.2,
        pooled: bool = False,
    ) -> None:
        source = model if assets is None else str(assets)
        backbone: Any = load_backbone(source, weights=assets is None)
        processor = _load_processor(source)
        pixels = _pixels(processor, Image.new("RGB", (256, 256)), image_size)
        with torch.set_grad_enabled(fine_tune):
            probe = _probe(backbone, pixels.unsqueeze(0), source)
        if fine_tune:
            freeze_unreached(backbone, probe)
        checkpoint = identify(model, backbone.config) if assets is None else _saved_name(assets)
        super().__init__(
            backbone=backbone,
            feature_dim=probe.shape[-1],
            fingerprint=f"{checkpoint}:{pixels.shape[1]}x{pixels.shape[2]}:{probe.shape[1]}",
            embed_dim=embed_dim,
            projection=projection,
            size_augmentation=size_augmentation,
            augmentation_rate=augmentation_rate,
            fine_tune=fine_tune,
            pooled=pooled,
        )
        self.checkpoint = checkpoint
        self.processor = processor
        self.image_size = image_size

    def preprocess(
        self, image: Image.Image, generator: torch.Generator | None = None
    ) -> Float[Tensor, "3 H W"]:
        """Turn the picture, or a random view of it, into pixels as the checkpoint wants them."""
        return _pixels(
            self.processor, image if generator is None else random_view(image, generator), self.image_size
        )

    def extract(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B N C"]:
        """Return patch tokens or cells, row by row."""
        return _local_features(self.backbone, pixels)

    def save_assets(self, folder: Path) -> None:
        """Write the backbone's configuration, its preprocessing and its name."""
        folder.mkdir(parents=True, exist_ok=True)
        self.backbone.config.save_pretrained(folder)  # type: ignore[union-attr, operator]
        self.processor.save_pretrained(folder)
        write_whole(folder / FINGERPRINT_FILE, f"{self.checkpoint}\n")


def _load_processor(source: str) -> Any:
    from transformers import AutoImageProcessor

    # The Pillow backend on every machine: torchvision's resizing gives other numbers.
    return load_or_explain(
        lambda: AutoImageProcessor.from_pretrained(source, backend="pil"),
        what="the preprocessing",
        source=source,
    )


def _pixels(processor: Any, image: Image.Image, image_size: int | None) -> Float[Tensor, "3 H W"]:
    if image_size is None:
        pixels: Tensor = processor(image, return_tensors="pt")["pixel_values"][0]
    else:
        square = image.resize((image_size, image_size), Image.Resampling.BICUBIC)
        pixels = processor(square, return_tensors="pt", do_resize=False, do_center_crop=False)[
            "pixel_values"
        ][0]
    return pixels


def _local_features(backbone: Any, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B N C"]:
    takes_any_size = "interpolate_pos_encoding" in inspect.signature(backbone.forward).parameters
    options = {"interpolate_pos_encoding": True} if takes_any_size else {}
    state: Tensor = backbone(pixel_values=pixels, **options).last_hidden_state
    if state.dim() == 4:
        return state.flatten(2).transpose(1, 2)
    # Class and register tokens come first. Hierarchical transformers have none and fewer tokens.
    patch = backbone.config.patch_size
    patches = (pixels.shape[2] // patch) * (pixels.shape[3] // patch)
    return state[:, -patches:]


def _probe(backbone: Any, pixels: Tensor, source: str) -> Float[Tensor, "1 N C"]:
    """Encode one black picture: how many local features, and how wide, the backbone alone knows."""
    try:
        return _local_features(backbone, pixels)
    except (AttributeError, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{source!r} gives no local features of a picture ({reason}): use a vision backbone"
        ) from error


def _saved_name(assets: Path) -> str:
    try:
        return (assets / FINGERPRINT_FILE).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ModelError(
            f"{assets / FINGERPRINT_FILE} cannot be read: save or copy the model again"
        ) from error
