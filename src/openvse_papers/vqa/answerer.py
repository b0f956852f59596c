"""A model that answers questions about images, or from the questions only."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from openvse.assembly.describe import describe_part, describe_tower
from openvse.encoders import ImageEncoder, TextEncoder
from openvse.errors import DataError, ModelError
from openvse.functional import pad
from openvse.fusion import FUSIONS
from openvse.fusion.base import Fusion
from openvse.media.videos import ClipSource
from openvse.model.base import Model
from openvse.model.tower import Tower, evaluating
from openvse.tokenization.vocabulary import UnknownWord, unknown_line
from openvse.types import Inputs
from openvse_papers.vqa.answers import AnswerVocabulary
from openvse_papers.vqa.recipe import AnswererSpec, HeadSpec

_logger = logging.getLogger("openvse.vqa.answerer")  # its warnings are openvse's

ANSWERS_FILE = "answers.json"


class Guess(NamedTuple):
    """An answer and its probability. Probabilities need not add up to 1, since each answer is decided independently."""

    answer: str
    probability: float


class Attended(NamedTuple):
    """The attention weights of questions and their images, or of one pair: k sets per side, each of which sums to 1."""

    image: Float[Tensor, "*Q k N"]
    words: Float[Tensor, "*Q k M"]


class Answered(NamedTuple):
    """The best answers to one question (none to an empty one), the weights behind them, and its unknown words."""

    guesses: list[Guess]
    attended: Attended | None
    unknown_words: tuple[UnknownWord, ...] = ()


class FeedForward(nn.Module):
    """``LN(x + drop(W2 relu(W1 x)))`` with a hidden width of D (score attention, sections III-C and IV-B)."""

    def __init__(self, embed_dim: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(embed_dim, embed_dim)
        self.outer = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, x: Float[Tensor, "Q D"]) -> Float[Tensor, "Q D"]:
        """Transform the vector of each item."""
        normed: Tensor = self.norm(x + self.dropout(self.outer(self.inner(x).relu())))
        return normed


class Answerer(Model):
    """Chooses among A answers by fusion, mean of k vectors per side, feed-forward, concatenation, one linear layer.

    This is the architecture of score attention (section III-C). Without images it is the question-only model, which
    answers from only the embedding of the question.

    Args:
        image: the tower of images. None for the question-only model.
        text: the tower of questions.
        fusion: the part that reduces an image and a question together. None without images.
        answers: the answers to choose from.
        embed_dim: D.
        dropout: the dropout probability of the feed-forward layers.
        spec: the parts of the model. None derives it from the modules.
        provenance: the origin of the model. See ``Model``.

    Examples:
        >>> model = openvse.load("runs/daquar/best")  # doctest: +SKIP
        >>> model.ask("kitchen.jpg", ["how many chairs are there?"], top_k=1)  # doctest: +SKIP
        [[Guess(answer='4', probability=0.62)]]
    """

    task: ClassVar[str] = "vqa"
    purpose: ClassVar[str] = "answers questions about images"

    def __init__(
        self,
        image: Tower[ImageEncoder] | None,
        text: Tower[TextEncoder],
        fusion: Fusion | None,
        answers: AnswerVocabulary,
        *,
        embed_dim: int,
        dropout: float,
        spec: AnswererSpec | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(spec, provenance)
        self.embed_dim, self.dropout = embed_dim, dropout
        self.image = image
        self.text = text
        self.fusion = fusion
        self.answers = answers
        self.image_layer = FeedForward(embed_dim, dropout) if image is not None else None
        self.text_layer = FeedForward(embed_dim, dropout)
        sides = 1 if image is None else 2
        self.classifier = nn.Linear(sides * embed_dim, len(answers))
        # Each answer starts at probability 1/A. From one half, an epoch would be spent learning that most are wrong.
        nn.init.constant_(self.classifier.bias, -math.log(len(answers)))

    @property
    def sees(self) -> bool:
        """Whether the model looks at images."""
        return self.image is not None

    @property
    def reads_images(self) -> bool:
        """Whether it needs no stored features. A question-only model reads no images, and needs none."""
        return self.image is None or self.image.encoder.backbone.reads_images

    def forward(
        self, images: Inputs | None, image_of: Int[Tensor, "Q"], questions: Inputs
    ) -> Float[Tensor, "Q A"]:
        """Return the logit of each answer.

        Args:
            images: I images, each once. None for the question-only model.
            image_of: the row of each question's image.
            questions: Q questions.

        Raises:
            ModelError: the model looks at images and they are missing.
        """
        return self.with_attention(images, image_of, questions)[0]

    def with_attention(
        self, images: Inputs | None, image_of: Int[Tensor, "Q"], questions: Inputs
    ) -> tuple[Float[Tensor, "Q A"], Attended | None]:
        """Return the logits of ``forward``, and the attention weights of the same pass. None without weights."""
        if self.image is None or self.fusion is None or self.image_layer is None:
            return self.classifier(self.text_layer(self.text(questions).vectors.mean(dim=1))), None
        if images is None:
            raise ModelError("this model looks at images, but got none: name them")
        regions, words = self.fusion.prepare(self.image(images), self.text(questions))
        x, z, weights = self.fusion(regions[image_of], words)
        sides = [self.image_layer(x.mean(dim=1)), self.text_layer(z.mean(dim=1))]
        return self.classifier(torch.cat(sides, dim=-1)), None if weights is None else Attended(*weights)

    def ask(
        self,
        image: ClipSource | None,
        questions: str | Sequence[str],
        *,
        top_k: int = 5,
        batch_size: int = 64,
    ) -> list[list[Guess]]:
        """Answer questions about an image, which is encoded once per batch of questions.

        Unknown words are logged, in one warning for all questions. ``answer`` and ``explain`` return them. An empty
        question is logged too, and gets no answers.

        Args:
            image: a path, bytes, a PIL image or an array ``uint8 [H, W, 3]``. The question-only model does not read it.
            questions: one question, or any number of questions.
            top_k: the number of answers to each question, the most probable first.
            batch_size: the number of questions at a time.

        Raises:
            BadImageError: the image cannot be decoded.
            ModelError: the model looks at images and there is none, or it reads only precomputed features.
            DataError: there are no questions, or all are empty.
        """
        answered = self.answer(self.read(image), questions, top_k=top_k, batch_size=batch_size)
        return [each.guesses for each in answered]

    @torch.inference_mode()
    def answer(
        self, images: Inputs | None, questions: str | Sequence[str], *, top_k: int = 5, batch_size: int = 64
    ) -> list[Answered]:
        """Answer questions about an image from ``read``, with the attention weights of each. See ``ask``."""
        questions = [questions] if isinstance(questions, str) else questions
        asked = _not_empty(questions)
        unknown = self.unknown_words(asked)
        if line := unknown_line(chain.from_iterable(unknown)):
            _logger.warning("%s", line)
        batches = [
            self.read_questions(asked[start : start + batch_size])
            for start in range(0, len(asked), batch_size)
        ]
        with evaluating(self):
            answers = [answered for tokens in batches for answered in self._answer(images, tokens, top_k)]
        progress = iter(
            answered._replace(unknown_words=tuple(words))
            for answered, words in zip(answers, unknown, strict=True)
        )
        return [next(progress) if question.strip() else Answered([], None) for question in questions]

    def unknown_words(self, questions: str | Sequence[str]) -> list[list[UnknownWord]]:
        """Return the words of each question that the model has not learned, and the words that it reads instead."""
        questions = [questions] if isinstance(questions, str) else questions
        return [self.text.encoder.unknown_words(question) for question in questions]

    def read(self, image: ClipSource | None) -> Inputs | None:
        """Return an image as a batch of one, on the model's device. None for the question-only model."""
        if self.image is None:
            return None
        if image is None:
            raise ModelError("this model looks at an image, but got none: name one")
        backbone = self.image.encoder.backbone
        return backbone.collate([backbone.read(image, exact=False)]).to(self.device)

    def read_questions(self, questions: Sequence[str]) -> Inputs:
        """Return the token ids of questions, on the model's device. Raise DataError for an empty one."""
        if not all(question.strip() for question in questions):
            raise DataError("a question is empty: ask something, such as 'how many chairs are there?'")
        return pad(self.text.encoder.tokenize(questions)).to(self.device)

    def describe(self) -> AnswererSpec:
        """Derive the spec from the parts. See ``Model.describe``."""
        image = fusion = None
        if self.image is not None and self.fusion is not None:
            image = describe_tower("image", self.image.encoder, self.image.aggregator)
            fusion = describe_part(FUSIONS, self.fusion)
        return AnswererSpec(
            embed_dim=self.embed_dim,
            image=image,
            text=describe_tower("text", self.text.encoder, self.text.aggregator),
            fusion=fusion,
            head=HeadSpec(dropout=self.dropout),
        ).portable()

    def save_assets(self, folder: Path) -> None:
        """Write the answers, and the files that the encoders need besides their weights."""
        if self.image is not None:
            self.image.encoder.save_assets(folder / "image")
        self.text.encoder.save_assets(folder / "text")
        self.answers.save(folder / ANSWERS_FILE)

    def _answer(self, images: Inputs | None, questions: Inputs, top_k: int) -> Iterator[Answered]:
        """Answer a batch of questions about one image, the most probable answers first."""
        of_first = torch.zeros(len(questions), dtype=torch.int64, device=self.device)
        logits, attended = self.with_attention(images, of_first, questions)
        best, ids = logits.float().sigmoid().topk(min(top_k, len(self.answers)), dim=1)
        for row, (probabilities, answers) in enumerate(zip(best.tolist(), ids.tolist(), strict=True)):
            guesses = [
                Guess(self.answers.answers[answer], chance)
                for chance, answer in zip(probabilities, answers, strict=True)
            ]
            yield Answered(guesses, attended and Attended(attended.image[row], attended.words[row]))


def _not_empty(questions: Sequence[str]) -> list[str]:
    """Return the questions that are not empty, and log how many are. Raise DataError if all are."""
    if not questions:
        raise DataError("there is no question: give at least one")
    if not (asked := [question for question in questions if question.strip()]):
        raise DataError("every question is empty: ask something, such as 'how many chairs are there?'")
    if len(asked) < len(questions):
        empty = len(questions) - len(asked)
        _logger.warning("an empty question has no answer (%d of %d are empty)", empty, len(questions))
    return asked
