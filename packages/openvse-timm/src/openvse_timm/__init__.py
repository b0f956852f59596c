"""Any vision backbone of the ``timm`` library, among them the ResNeXt grids of VSE-infinity."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from openvse.backbones.base import ALL_LEVELS, LevelBackbone, all_real, levels_of
from openvse.backbones.fine_tuning import freeze_unreached
from openvse.errors import ModelError
from openvse.media.resizing import stretched
from openvse.types import Features, Inputs

_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


class TimmVision(LevelBackbone):
    """The cells of a network's last feature map, or the patch tokens of a transformer, for any model name of timm.

    VSE-infinity's best grids come from a ResNeXt-101 trained on Instagram hashtags (WSL), at 512 pixels:
    ``model: resnext101_32x8d.fb_wsl_ig1b_ft_in1k, image_size: 512``. Pillow resizes the whole image to a square,
    without a centre crop. Mean and deviation are the model's own.

    Args:
        model: timm's name of architecture and weights. ``local-dir:FOLDER`` and ``hf-hub:ID`` are such names too.
        pretrained: whether to start from the published weights. Otherwise at random.
        image_size: the side of the square in pixels. None takes the model's own.

    Raises:
        ModelError: timm is missing, cannot be imported, or does not know the model.
    """

    covers_image = True

    image_size: int

    def __init__(
        self,
        *,
        model: str,
        assets: Path | None = None,
        pretrained: bool = True,
        fine_tune: bool = False,
        gradient_checkpointing: bool = False,
        image_size: int | None = None,
        exact_decode: bool | None = None,
    ) -> None:
        timm = _timm()
        network, probe, side = _network(timm, model, image_size, weights=pretrained and assets is None)
        if fine_tune:
            freeze_unreached(network, _local_features(network, probe))
            # The library knows its own blocks. Many of them are not in an nn.ModuleList.
            network.set_grad_checkpointing(gradient_checkpointing)
        with torch.no_grad():
            local = _local_features(network, probe)
        # timm's default changes between versions.
        published = network.pretrained_cfg.get("tag") or "pretrained"
        super().__init__(
            network,
            feature_dim=local.shape[-1],
            fingerprint=f"timm {model}:{published if pretrained else 'random'}:{side}x{side}:{local.shape[1]}",
            fine_tune=fine_tune,
            exact_decode=exact_decode,
        )
        self.image_size = side
        statistics = timm.data.resolve_model_data_config(network)
        mean, deviation = (torch.tensor(statistics[name]).unsqueeze(1) for name in ("mean", "std"))
        self.standardise((ALL_LEVELS / 255 - mean) / deviation)

    @property
    def shorter_side(self) -> int:
        """The side of the square."""
        return self.image_size

    def levels(self, image: Image.Image) -> UInt8[Tensor, "3 H W"]:
        return levels_of(stretched(image, (self.image_size, self.image_size)))

    def see(self, inputs: Inputs) -> Features:
        return all_real(_local_features(self.net, inputs.values))


def _timm() -> Any:
    try:
        import timm
    except ModuleNotFoundError as error:
        raise ModelError(f"timm_vision needs the package {error.name}: pip install {error.name}") from error
    except (ImportError, RuntimeError) as error:  # a torchvision built for another torch
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"timm cannot be imported ({reason}): install the torchvision that was built for torch {torch.__version__}"
        ) from error
    return timm


def _network(timm: Any, model: str, image_size: int | None, *, weights: bool) -> tuple[Any, Tensor, int]:
    """Return the network in evaluation mode, a black image for it, and the image's side."""
    try:
        with _tensors_only():
            network = timm.create_model(model, pretrained=weights, num_classes=0)
        side = image_size or network.pretrained_cfg["input_size"][-1]
        resize = getattr(network, "set_input_size", None)
        if resize is not None:  # transformers have position embeddings for one size
            resize(img_size=(side, side))
    except (RuntimeError, OSError, ValueError, AssertionError, UnpicklingError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"timm cannot load {model!r} ({reason}): see timm.list_models(pretrained=True)") from error
    return network.eval(), torch.zeros(1, 3, side, side), side


@contextmanager
def _tensors_only() -> Iterator[None]:
    """Let PyTorch read only tensors. timm itself would unpickle the file of a ``local-dir:``."""
    before = {name: os.environ[name] for name in (_FORCE,) if name in os.environ}
    os.environ[_FORCE] = "1"
    try:
        yield
    finally:
        del os.environ[_FORCE]
        os.environ.update(before)


def _local_features(network: Any, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B N C"]:
    state: Tensor = network.forward_features(pixels)
    if state.dim() == 3:
        return state[:, getattr(network, "num_prefix_tokens", 0) :]
    if getattr(network, "output_fmt", "NCHW") == "NHWC":
        return state.flatten(1, 2)
    return state.flatten(2).transpose(1, 2)
