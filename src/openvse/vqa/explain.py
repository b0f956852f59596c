"""Answers with the attention weights behind them, for the parts of the image and for the words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isqrt

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.encoders import ImageEncoder, UnknownWord
from openvse.media.videos import ClipSource
from openvse.model import evaluating
from openvse.types import Inputs
from openvse.vqa.answerer import Answerer, Guess


@dataclass(frozen=True)
class Explained:
    """A question, its answers, and the weights of the k reductions, which are None if the model has none.

    Attributes:
        question: the question, as it was asked.
        guesses: the most probable answers.
        words: the word or piece of each token.
        word_weights: the weights of the tokens; those of each reduction sum to 1.
        boxes: left, top, right and bottom of the image's parts as fractions of its width and height.
        image_weights: the weights of these parts.
        tiled: whether the parts are cells that cover the image; otherwise they are regions, which overlap.
        unknown_words: the words of the question that the model does not know.
    """

    question: str
    guesses: list[Guess]
    words: list[str]
    word_weights: Float[Tensor, "k M"] | None = None
    boxes: Float[Tensor, "N 4"] | None = None
    image_weights: Float[Tensor, "k N"] | None = None
    tiled: bool = True
    unknown_words: tuple[UnknownWord, ...] = ()


@torch.inference_mode()
def explain(
    model: Answerer, image: ClipSource | None, questions: str | Sequence[str], *, top_k: int = 5
) -> list[Explained]:
    """Answer questions about an image, and return the attention weights behind each answer.

    Args:
        model: the model that answers.
        image: the image, as for ``Answerer.ask``.
        questions: one or more questions; a single one is a sequence of one.
        top_k: the number of answers to each question.

    Raises:
        BadImageError: the image cannot be decoded.
        ModelError: the model looks at images and there is none, or it reads only precomputed features.
        DataError: there are no questions, or all are empty.
    """
    questions = [questions] if isinstance(questions, str) else questions
    images = model.read(image)
    boxes, tiled = None, True
    with evaluating(model):
        if model.image is not None and images is not None:
            images, boxes, tiled = located(model.image.encoder, images)
        answered = model.answer(images, questions, top_k=top_k)
    explained = []
    for question, (guesses, attended, unknown) in zip(questions, answered, strict=True):
        words = model.text.encoder.pieces(question) if question.strip() else []
        one = Explained(question, guesses, words, unknown_words=unknown)
        if attended is not None:
            of_words, of_image = attended.words[:, : len(words)].cpu(), attended.image.cpu()
            one = replace(one, word_weights=of_words, boxes=boxes, image_weights=of_image, tiled=tiled)
        explained.append(one)
    return explained


def located(encoder: ImageEncoder, images: Inputs) -> tuple[Inputs, Float[Tensor, "N 4"] | None, bool]:
    """Return the raw features of an image instead of its pixels, their boxes if known, and whether they tile it.

    Args:
        encoder: the encoder of the images.
        images: a batch of one, of pixels or of stored features.
    """
    if images.mask is not None:  # a clip
        return images, None, False
    seen = encoder.local_features(images)
    raw = Inputs(seen.local, seen.mask)
    if seen.boxes is not None:
        return raw, seen.boxes[0].cpu(), False
    return raw, _grid(seen.local.shape[1]) if encoder.backbone.covers_image else None, True


def _grid(count: int) -> Float[Tensor, "N 4"] | None:
    """Return the cells of a square grid, row by row; a token before them represents the whole image."""
    side = isqrt(count)
    before = count - side * side
    if before > 1:
        return None
    edges = torch.arange(side + 1) / side
    top, left = torch.meshgrid(edges[:-1], edges[:-1], indexing="ij")
    cells = torch.stack([left, top, left + 1 / side, top + 1 / side], dim=-1).flatten(0, 1)
    return torch.cat([torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(before, 4), cells])
