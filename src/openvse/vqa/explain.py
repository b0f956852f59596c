"""Answers with the attention weights behind them, for the parts of the image and for the words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.encoders import UnknownWord
from openvse.encoders.image_encoder import locate
from openvse.media.videos import ClipSource
from openvse.model import evaluating
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
            images, boxes, tiled = locate(model.image.encoder, images)
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
