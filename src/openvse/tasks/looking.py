"""The explanation of a score: how much each part of an image, and each word, adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.encoders.image_encoder import locate
from openvse.errors import DataError, ModelError
from openvse.functional import pad
from openvse.media.videos import ClipSource
from openvse.model.two_tower import Tower, TwoTower, evaluating
from openvse.types import Inputs


@dataclass(frozen=True)
class ScoreMap:
    """The parts of an image and of a sentence, and how much each adds to the score.

    The numbers of a pooling that is linear in the sorted elements (mean, maximum, GPO) add up to the score, apart from
    the constant of the pooling, if it has one. For other poolings they are its first-order part (gradient times input).

    Attributes:
        boxes: left, top, right and bottom of the parts, as fractions of the image's width and height.
        tiled: whether the parts are cells that cover the image. Otherwise they are regions, which overlap.
        view: the number of the image's embedding that fits the sentence best, from 1, and the number of embeddings.
    """

    boxes: Float[Tensor, "N 4"]
    shares: Float[Tensor, "N"]
    tiled: bool
    words: Sequence[str]
    word_shares: Float[Tensor, "M"]
    view: tuple[int, int]

    def describe(self, of: str = "score") -> dict[str, Any]:
        """Return the map of a score, or of attention, as JSON."""
        return {
            "of": of,
            "boxes": rounded(self.boxes),
            "shares": rounded(self.shares),
            "tiled": self.tiled,
            "words": list(self.words),
            "word_shares": rounded(self.word_shares),
            "view": self.view[0],
            "views": self.view[1],
        }


def look(model: TwoTower, image: ClipSource, sentence: str) -> ScoreMap:
    """Return how much each part of an image and each word of a sentence adds to their score.

    With v the pooled embedding before it is scaled, t the unit embedding of the sentence and x_n the local features,
    part n adds ``(dv/dx_n . x_n) . t / |v|``. Of several embeddings the two that fit best count. A model that reads
    images as one vector, or whose parts have no known places, is refused.
    """
    if not sentence.strip():
        raise DataError("the sentence is empty: give one to compare the image with")
    with evaluating(model):
        with torch.inference_mode():
            raw, boxes, tiled = locate(model.image.encoder, model.read_images([image]).to(model.device))
        if boxes is None or len(boxes) < 2:
            raise ModelError("this model reads an image as one vector, so its parts have no scores: choose another")
        tokens = pad(model.text.encoder.tokenize([sentence])).to(model.device)
        with torch.enable_grad():
            of_image, local = _embedded(model.image, _plain(raw))
            of_text, words = _embedded(model.text, tokens)
            scores = of_image @ of_text.T
            best = int(scores.argmax())
            score = scores.flatten()[best]
            toward_parts, toward_words = torch.autograd.grad(score, [local, words], allow_unused=True)
    view = best // scores.shape[1] + 1, scores.shape[0]
    shares, of_words = _shares(toward_parts, local), _shares(toward_words, words)
    if len(shares) != len(boxes) or not shares.isfinite().all():
        raise ModelError("the image parts of this model have no known places: choose another model")
    pieces = model.text.encoder.pieces(sentence)
    return ScoreMap(boxes, shares, tiled, pieces, of_words[: len(pieces)], view)


def _plain(inputs: Inputs) -> Inputs:
    """Return inputs that were made in inference mode as ordinary tensors."""
    return Inputs(inputs.values.clone(), None if inputs.mask is None else inputs.mask.clone())


def _embedded(tower: Tower[Any], inputs: Inputs) -> tuple[Float[Tensor, "K D"], Float[Tensor, "1 N L"]]:
    """Return the embeddings of one item, whose lengths count as constants, and the local features behind them."""
    with torch.no_grad():
        features = tower.encoder(inputs)
    local = features.local.detach().requires_grad_()
    features = type(features)(local, features.mask, features.pooled, features.boxes)
    vectors = tower.aggregator(features).vectors[0]
    return vectors / vectors.detach().norm(dim=-1, keepdim=True).clamp(min=1e-12), local


def _shares(gradient: Tensor | None, local: Float[Tensor, "1 N L"]) -> Float[Tensor, "N"]:
    if gradient is None:
        return torch.zeros(local.shape[1])
    return (gradient * local).sum(dim=-1)[0].detach().cpu()


def rounded(values: Tensor) -> Any:
    """Return numbers as lists, rounded to five decimals."""
    return values.cpu().double().round(decimals=5).tolist()


def look_as_json(model: TwoTower, image: ClipSource, sentence: str) -> dict[str, Any]:
    """Return the map of a score as JSON. See ``look``."""
    return look(model, image, sentence).describe()
