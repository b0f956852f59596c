"""Vision checkpoints of ``transformers``: their preprocessing, their files, and the base of their backbones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from openvse.backbones.base import Backbone
from openvse.backbones.installed import model_source
from openvse.backbones.pretrained import load_or_explain
from openvse.errors import ModelError
from openvse.files import write_whole

FINGERPRINT_FILE = "fingerprint.txt"


def load_processor(source: str) -> Any:
    """Return the preprocessing of a checkpoint.

    Raises:
        ModelError: the preprocessing cannot be loaded.
    """
    from transformers import AutoImageProcessor

    place = model_source(source)
    # The Pillow backend is used on every machine, since torchvision's resizing gives other numbers.
    return load_or_explain(
        lambda: AutoImageProcessor.from_pretrained(place, backend="pil"),
        what="the preprocessing",
        source=source,
    )


def pixels_of(
    processor: Any, image: Image.Image, image_size: int | None, *, round_crop: bool = False
) -> Float[Tensor, "3 H W"]:
    """Turn an image into pixels.

    Args:
        processor: the checkpoint's preprocessing.
        image: an image of any size.
        image_size: the side of the square to which the whole image is resized, instead of the checkpoint's
            resizing and cropping; None leaves both to the checkpoint.
        round_crop: cut the middle out as torchvision does.
    """
    options: dict[str, bool] = {}
    if image_size is not None:
        image = image.resize((image_size, image_size), Image.Resampling.BICUBIC)
        options = {"do_resize": False, "do_center_crop": False}
    elif round_crop and processor.do_center_crop:
        image = _middle(processor, image)
        options = {"do_resize": False, "do_center_crop": False}
    pixels: Tensor = processor(image, return_tensors="pt", **options)["pixel_values"][0]
    return pixels


def _middle(processor: Any, image: Image.Image) -> Image.Image:
    """Resize the shorter side, and cut the middle out from ``round(rest / 2)`` on; transformers rounds down."""
    short, sides = processor.size["shortest_edge"], image.size
    new = [short if side == min(sides) else int(short * side / min(sides)) for side in sides]
    resized = image.resize((new[0], new[1]), processor.resample)
    width, height = processor.crop_size["width"], processor.crop_size["height"]
    left, top = round((new[0] - width) / 2), round((new[1] - height) / 2)
    return resized.crop((left, top, left + width, top + height))


class CheckpointBackbone(Backbone):
    """A backbone whose network and preprocessing come from a checkpoint.

    Attributes:
        checkpoint: the name of the checkpoint.
        processor: the preprocessing of the checkpoint.
        image_size: see ``pixels_of``.
        round_crop: likewise.
    """

    checkpoint: str
    processor: Any
    image_size: int | None
    round_crop: bool = False

    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 H W"]:
        """Turn the image into pixels as the checkpoint wants them."""
        return pixels_of(self.processor, image, self.image_size, round_crop=self.round_crop)

    def save_assets(self, folder: Path) -> None:
        """Write the configuration, the preprocessing and the name of the checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        self.net.config.save_pretrained(folder)  # type: ignore[union-attr, operator]
        self.processor.save_pretrained(folder)
        write_whole(folder / FINGERPRINT_FILE, f"{self.checkpoint}\n")


def saved_name(assets: Path) -> str:
    """Return the name that ``CheckpointBackbone.save_assets`` wrote.

    Raises:
        ModelError: the name is missing.
    """
    try:
        return (assets / FINGERPRINT_FILE).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ModelError(
            f"{assets / FINGERPRINT_FILE} cannot be read: save or copy the model again"
        ) from error
