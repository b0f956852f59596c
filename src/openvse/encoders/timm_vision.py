"""Any vision backbone of the ``timm`` library, among them the ResNeXt grids of VSE-infinity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from openvse.encoders.backbone import freeze_unreached
from openvse.encoders.image_encoder import LocalFeatureEncoder
from openvse.encoders.random_view import random_view
from openvse.encoders.size_augmentation import FeatureMode
from openvse.errors import ModelError


class TimmVision(LocalFeatureEncoder):
    """The cells of a network's last feature map, or the patch tokens of a transformer, by timm's model names.

    VSE-infinity's best grids are those of a ResNeXt-101 that saw hashtags of Instagram (WSL), at 512 pixels:
    ``model: resnext101_32x8d.fb_wsl_ig1b_ft_in1k, image_size: 512``. The whole picture is resized to a square
    by Pillow, without a centre crop; mean and deviation are the model's own. It needs the extra ``timm``.

    Args:
        embed_dim: D.
        model: timm's name of architecture and weights; ``local-dir:FOLDER`` and ``hf-hub:ID`` are such names too.
        assets: a saved model's folder: the weights come with the model, so the pretrained ones are not read.
        pretrained: start from the published weights; otherwise at random.
        fine_tune: train the backbone; its BatchNorm statistics stay as they are.
        gradient_checkpointing: with ``fine_tune``, trade time for memory; the gradients are the same.
        image_size: side of the square in pixels; None takes the model's own.
        projection: a name of ``PROJECTIONS``.
        size_augmentation: none, region or grid.
        augmentation_rate: probability that a local feature is hidden in training.
        pooled: yield a global vector too, one linear layer of the mean raw feature; PIE-Net needs it.

    Raises:
        ModelError: timm is missing or cannot be imported, or knows no such model.
    """

    covers_picture = True

    def __init__(
        self,
        *,
        embed_dim: int,
        model: str,
        assets: Path | None = None,
        pretrained: bool = True,
        fine_tune: bool = False,
        gradient_checkpointing: bool = False,
        image_size: int | None = None,
        projection: str = "linear",
        size_augmentation: FeatureMode = "grid",
        augmentation_rate: float = 0.2,
        pooled: bool = False,
    ) -> None:
        timm = _timm()
        backbone, probe, side = _network(timm, model, image_size, weights=pretrained and assets is None)
        if fine_tune:
            freeze_unreached(backbone, _local_features(backbone, probe))
            # The library knows its own blocks; many are no nn.ModuleList.
            backbone.set_grad_checkpointing(gradient_checkpointing)
        with torch.no_grad():
            local = _local_features(backbone, probe)
        published = (
            backbone.pretrained_cfg.get("tag") or "pretrained"
        )  # timm's default changes between versions
        super().__init__(
            backbone=backbone,
            feature_dim=local.shape[-1],
            fingerprint=f"timm {model}:{published if pretrained else 'random'}:{side}x{side}:{local.shape[1]}",
            embed_dim=embed_dim,
            projection=projection,
            size_augmentation=size_augmentation,
            augmentation_rate=augmentation_rate,
            fine_tune=fine_tune,
            pooled=pooled,
        )
        self.image_size = side
        self._statistics = timm.data.resolve_model_data_config(backbone)

    def preprocess(
        self, image: Image.Image, generator: torch.Generator | None = None
    ) -> Float[Tensor, "3 H W"]:
        """Resize the picture, or a random view of it, to a square, and normalise it as the model says."""
        view = random_view(image, generator)
        square = view.resize((self.image_size, self.image_size), Image.Resampling.BICUBIC)
        mean, deviation = (np.array(self._statistics[name], dtype=np.float32) for name in ("mean", "std"))
        pixels = (np.asarray(square, dtype=np.float32) / 255 - mean) / deviation
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def extract(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B N C"]:
        """Return cells or patch tokens, row by row."""
        return _local_features(self.backbone, pixels)


def _timm() -> Any:
    try:
        import timm
    except ModuleNotFoundError as error:
        raise ModelError(
            f"timm_vision needs the package {error.name}, which is not installed: pip install 'openvse[timm]'"
        ) from error
    except (ImportError, RuntimeError) as error:  # a torchvision that was built for another torch
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"timm cannot be imported ({reason}): install the torchvision that was built for torch {torch.__version__}"
        ) from error
    return timm


def _network(timm: Any, model: str, image_size: int | None, *, weights: bool) -> tuple[Any, Tensor, int]:
    """Return the network in evaluation mode, a black picture for it, and the picture's side."""
    try:
        backbone = timm.create_model(model, pretrained=weights, num_classes=0)
        side = image_size or backbone.pretrained_cfg["input_size"][-1]
        resize = getattr(backbone, "set_input_size", None)
        if resize is not None:  # transformers lay their positions out for one size
            resize(img_size=(side, side))
    except (RuntimeError, OSError, ValueError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"timm cannot load {model!r} ({reason}): see timm.list_models(pretrained=True)"
        ) from error
    return backbone.eval(), torch.zeros(1, 3, side, side), side


def _local_features(backbone: Any, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B N C"]:
    state: Tensor = backbone.forward_features(pixels)
    if state.dim() == 3:
        return state[:, getattr(backbone, "num_prefix_tokens", 0) :]
    if getattr(backbone, "output_fmt", "NCHW") == "NHWC":
        return state.flatten(1, 2)
    return state.flatten(2).transpose(1, 2)
