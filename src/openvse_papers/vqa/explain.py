"""Answers with the attention weights behind them, and one web page that shows them on the image and its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.encoders.image_encoder import locate
from openvse.media.videos import ClipSource, read_poster
from openvse.model.two_tower import evaluating
from openvse.output.documents import html_page, image_uri
from openvse.tasks.load import load_as
from openvse.tasks.looking import ScoreMap
from openvse.tokenization.vocabulary import UnknownWord
from openvse_papers.vqa.answerer import Answerer, Guess

IMAGE_PX = 960
"""The longer side of the image: twice its size on the page, for dense screens."""

VEIL = 0.82
"""The darkness of a part without any weight."""

STEPS_OF_TWO = 2.0
"""The range of the scale of weights on either side of the even share: two doublings, so a quarter to four times."""

NEARLY_EVEN = 1.25
"""If the largest weight is below this multiple of the even share, attention counts as even."""

WHOLE = [0.0, 0.0, 1.0, 1.0]
"""The box of a class token, which represents the whole image. Drawing its veil would darken the cells."""

BOXES_SHOWN = 5
"""The largest number of outlined regions. They overlap, and regions with small weights say little."""

_NOTE = "Each answer has its own probability. They need not add up to 100 %."
_OF_WEIGHTS = (
    "Bright parts of the image and shaded words have the largest weights in the sums that make up the answer. Where "
    "all are alike, attention is even. Each part has already read the question and the other parts: its weight says "
    "where the model took the answer from, not why."
)
_LEGEND = """<div class="legend" role="img" aria-label="the scale of weights">
<div class="scales"><span class="of-cells"></span><span class="of-words"></span></div>
<div class="ticks">
<span>a quarter of the even share, or less</span><span>even</span><span>four times, or more</span>
</div>
</div>"""


@dataclass(frozen=True)
class Explained:
    """A question, its answers, and the weights of the k reductions, which are None if the model has none.

    Attributes:
        question: the question, in its original words.
        guesses: the most probable answers.
        words: the word or piece of each token.
        word_weights: the weights of the tokens. The weights of each reduction sum to 1.
        boxes: left, top, right and bottom of the image's parts as fractions of its width and height.
        image_weights: the weights of these parts.
        tiled: whether the parts are cells that cover the image. Otherwise they are regions, which overlap.
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

    def to_json(self) -> dict[str, Any]:
        """Return the question with its answers and unknown words, as the server and ``openvse ask --json`` say them."""
        return {
            "question": self.question,
            "unknown_words": [asdict(word) for word in self.unknown_words],
            "answers": [guess._asdict() for guess in self.guesses],
        }


@torch.inference_mode()
def explain(
    model: Answerer, image: ClipSource | None, questions: str | Sequence[str], *, top_k: int = 5
) -> list[Explained]:
    """Answer questions about an image, and return the attention weights behind each answer. See ``Answerer.ask``."""
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


@dataclass(frozen=True)
class ServedAnswerer:
    """A model that answers the questions of a server."""

    model: Answerer

    @property
    def reads_images(self) -> bool:
        """Whether the model reads image files."""
        return self.model.reads_images

    def answer_json(self, image: ClipSource | None, question: str) -> dict[str, Any]:
        """Return the answers with their probabilities, and the regions and words behind them, as JSON."""
        (one,) = explain(self.model, image, [question])
        reply = {**one.to_json(), "looked": None}
        if one.boxes is not None and one.image_weights is not None and one.word_weights is not None:
            shares, of_words = one.image_weights.mean(dim=0), one.word_weights.mean(dim=0)
            seen = ScoreMap(one.boxes, shares, one.tiled, one.words, of_words, (1, 1))
            reply["looked"] = seen.describe("attention")
        return reply


def load_served(source: str, device: str) -> ServedAnswerer:
    """Load a model that answers the questions of a server."""
    return ServedAnswerer(load_as(Answerer, source, device=device))


def answer_page(image: Path, answered: Sequence[Explained]) -> str:
    """Return an HTML page with each question, its answers, and the weights over image and words.

    Weights are shown relative to the even share, which each of N parts would have if all were equal. The smaller the
    weight of a grid cell, the darker it is, from clear at four times the even share to darkest at a quarter of it, on a
    logarithmic scale. If attention is even, all cells are therefore equally dim. The regions with the largest weights
    are outlined, with stronger lines for larger weights. Words are shaded on the same scale.
    """
    shown = read_poster(image, shorter_side=IMAGE_PX)
    shown.thumbnail((IMAGE_PX, IMAGE_PX))
    style = files("openvse_papers.vqa").joinpath("answer_page.css").read_text(encoding="utf-8")
    photo = (
        f".photo {{ aspect-ratio: {shown.width} / {shown.height}; "
        f"background-image: url({image_uri(shown, quality=85)}); }}\n"
    )
    sections, note = "\n".join(map(_section, answered)), _NOTE
    if any(one.word_weights is not None for one in answered):
        sections, note = f"{_LEGEND}\n{sections}", f"{note} {_OF_WEIGHTS}"
    return html_page(f"openvse ask: {image.name}", sections, note=note, style=style + photo)


def _section(one: Explained) -> str:
    weighed = "" if one.word_weights is None else _words(one.words, one.word_weights.mean(dim=0))
    mean = None if one.image_weights is None else one.image_weights.mean(dim=0)
    count = 1 if one.word_weights is None else len(one.word_weights)
    caption = _caption("mean of the reductions" if count > 1 else "weights", mean)
    if mean is not None and one.boxes is None:
        caption += ", at unknown positions of the parts"
    first = f"<figure>{_photo(one, mean)}<figcaption>{caption}</figcaption>{weighed}</figure>"
    rows = "\n".join(
        f'<tr><td>{escape(guess.answer)}</td><td><div class="bar" style="width: {100 * guess.probability:.1f}%">'
        f"</div></td><td>{100 * guess.probability:.1f} %</td></tr>"
        for guess in one.guesses
    )
    small = ""  # an image for each of several reductions
    if count > 1 and one.word_weights is not None and one.image_weights is not None:
        figures = "\n".join(
            f"<figure>{_photo(one, image)}<figcaption>{_caption(str(number), image)}</figcaption>"
            f"{_words(one.words, words)}</figure>"
            for number, (image, words) in enumerate(zip(one.image_weights, one.word_weights, strict=True), 1)
        )
        small = f'<div class="reductions">{figures}</div>\n'
    return (
        f'<section>\n<h2>{escape(one.question)}</h2>\n<div class="first">{first}<table>{rows}</table></div>\n'
        f"{small}</section>"
    )


def _caption(name: str, weights: Float[Tensor, "N"] | None) -> str:
    if weights is None:
        return "this model shows no weights"
    largest, even = float(weights.max()), 1 / len(weights)
    verdict = "nearly even; " if len(weights) > 1 and largest < NEARLY_EVEN * even else ""
    return (
        f"{name}: {verdict}at most {100 * largest:.1f} % a part, {largest / even:.1f} times the even share "
        f"of {100 * even:.1f} %"
    )


def brightness(weights: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """Return weights that sum to 1 on the scale: 0 at a quarter of the even share, 1/2 at it, 1 at four times it.

    With only one part, or no weight at all, there is nothing to compare, and all parts are bright.
    """
    count, total = len(weights), float(weights.sum())
    if count == 1 or total <= 0:
        return torch.ones_like(weights)
    doublings = torch.log2(weights * count / total)
    return ((doublings + STEPS_OF_TWO) / (2 * STEPS_OF_TWO)).clamp(0, 1)


def _photo(one: Explained, weights: Float[Tensor, "N"] | None) -> str:
    """Return the image with its weights over it, without weights if the positions of the parts are unknown."""
    shapes = ""
    if weights is not None and one.boxes is not None:
        parts = [*zip(one.boxes.tolist(), weights.tolist(), brightness(weights).tolist(), strict=True)]
        if one.tiled:
            shown = [part for part in parts if part[0] != WHOLE or len(parts) == 1]
            kind, opacities = "veil", [("fill-opacity", VEIL * (1 - share)) for _, _, share in shown]
        else:
            shown = sorted(parts, key=lambda part: part[1])[-BOXES_SHOWN:]
            kind, opacities = "box", [("stroke-opacity", share) for _, _, share in shown]
        shapes = "".join(
            f'<rect class="{kind}" x="{left:.4f}" y="{top:.4f}" width="{right - left:.4f}" '
            f'height="{bottom - top:.4f}" {name}="{value:.3f}"><title>{100 * weight:.1f} %</title></rect>'
            for ((left, top, right, bottom), weight, _), (name, value) in zip(shown, opacities, strict=True)
        )
    return f'<svg class="photo" viewBox="0 0 1 1" preserveAspectRatio="none" role="img">{shapes}</svg>'


def _words(words: Sequence[str], weights: Float[Tensor, "M"]) -> str:
    spans = " ".join(
        f'<span style="background: rgba(var(--shade), {0.75 * bright:.3f})" title="{100 * weight:.1f} %">'
        f"{escape(word)}</span>"
        for word, weight, bright in zip(words, weights.tolist(), brightness(weights).tolist(), strict=True)
    )
    return f'<p class="words">{spans}</p>'
