"""The encoder and the aggregator of one side of a model, of whatever task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.assembly.image_encoder import make_image_encoder
from openvse.assembly.parts import build_part
from openvse.encoders import TEXT_ENCODERS, Encoder, ImageEncoder, TextEncoder
from openvse.errors import RecipeError
from openvse.specs import TowerSpec


def build_image_encoder(spec: TowerSpec, embed_dim: int, assets: Path | None) -> ImageEncoder:
    """Build the image encoder of a side.

    Args:
        spec: the side; its encoder has a backbone's name and the options of the backbone and of the ``ImageEncoder``.
        embed_dim: D.
        assets: the folder of a saved model, whose files are read instead of pretrained ones.
    """
    return make_image_encoder(spec.encoder, "image.encoder", embed_dim, assets and assets / "image")


def build_text_encoder(
    spec: TowerSpec, embed_dim: int, captions: Sequence[str], assets: Path | None, *, grow: bool = False
) -> TextEncoder:
    """Build the text encoder, with a vocabulary from the captions or the files of a saved model.

    Args:
        spec: the side with its encoder.
        embed_dim: D.
        captions: the training captions; if there are assets, only ``grow`` reads them.
        assets: the folder of a saved model.
        grow: add the words of the captions to the vocabulary of the assets.
    """
    folder = assets and assets / "text"
    context = {"embed_dim": embed_dim, "assets": folder, "captions": captions, "grow": grow}
    return build_part(TEXT_ENCODERS, spec.encoder, "text.encoder", context)


def build_aggregator(spec: TowerSpec, embed_dim: int, side: str, encoder: Encoder) -> Aggregator:
    """Build the aggregator of a side; raise RecipeError if the encoder lacks what it needs.

    Args:
        spec: the side with its aggregator.
        embed_dim: D.
        side: image or text, for messages.
        encoder: the encoder of the same side.
    """
    context = {"input_dim": encoder.local_dim, "embed_dim": embed_dim}
    aggregator = build_part(AGGREGATORS, spec.aggregator, f"{side}.aggregator", context)
    if aggregator.needs_pooled and not encoder.gives_pooled:
        raise RecipeError(
            f"{side}.aggregator: {spec.aggregator.name} needs a global vector, and {side}.encoder "
            f"{spec.encoder.name} yields none: set its global_vector: mean (images) or output: words (bigru)"
        )
    return aggregator
