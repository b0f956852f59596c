"""Published dual encoders as model folders: pixels, embeddings and logits are those of ``transformers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import openvse
from openvse.conversion import convert
from tests.dual_checkpoints import CAPTIONS, FAMILIES, save_dual

EXACT = {"rtol": 0, "atol": 1e-5}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: Any) -> Any:
    root = tmp_path_factory.mktemp("dual")

    def make(family: str) -> Path:
        folder = root / family
        return folder if folder.exists() else save_dual(family, folder)

    return make


def own(folder: Path, images: list[Image.Image], **options: Any) -> Any:
    """Return what ``transformers`` makes of images and captions, as its documentation says."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).float().eval()
    pixels = AutoImageProcessor.from_pretrained(folder, backend="pil")(images, return_tensors="pt")
    siglip = model.config.model_type == "siglip"
    padding: dict[str, Any] = {"padding": "max_length", "max_length": 16} if siglip else {"padding": True}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    with torch.no_grad():
        return pixels["pixel_values"], model(
            **pixels, **tokenizer(list(CAPTIONS), return_tensors="pt", **padding)
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_pixels_embeddings_and_logits_are_the_librarys_own(
    family: str, checkpoint: Any, make_photos: Any, tmp_path: Path
) -> None:
    paths = [*make_photos(2), *make_photos(1, "upright", (60, 91))]
    pixels, theirs = own(checkpoint(family), [Image.open(path) for path in paths])
    done = convert(checkpoint(family), tmp_path / "model")
    assert done.repository == family
    model = openvse.load(tmp_path / "model")
    torch.testing.assert_close(model.read_images(paths).values, pixels, **EXACT)
    images, texts = model.encode_image(paths), model.encode_text(CAPTIONS)
    torch.testing.assert_close(images.vectors[:, 0], theirs.image_embeds, **EXACT)
    torch.testing.assert_close(texts.vectors[:, 0], theirs.text_embeds, **EXACT)
    cosines = theirs.image_embeds @ theirs.text_embeds.T
    torch.testing.assert_close(model.score(images, texts), cosines, **EXACT)
    torch.testing.assert_close(model.logits(images, texts), theirs.logits_per_image, rtol=1e-5, atol=1e-5)
    assert model.similarity.link == ("sigmoid" if family == "siglip" else "softmax")
    assert model.indexable
