"""A model that answers questions about pictures, or of questions alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from openvse.encoders import ImageEncoder, TextEncoder
from openvse.errors import DataError, ModelError
from openvse.functional import pad
from openvse.fusion import Fusion
from openvse.media.videos import ClipSource
from openvse.model.base import Model
from openvse.model.tower import Tower
from openvse.types import EmbeddingSet, Inputs
from openvse.vqa.answers import AnswerVocabulary

ANSWERS_FILE = "answers.json"


class Guess(NamedTuple):
    """An answer, and its probability; those of all answers need not add up to 1, as each is decided by itself."""

    answer: str
    probability: float


class Attended(NamedTuple):
    """What a question and its picture weighed: k sets of weights a side, each of which adds up to 1.

    Attributes:
        image: of the picture's local features.
        words: of the question's tokens.
    """

    image: Float[Tensor, "Q k N"]
    words: Float[Tensor, "Q k M"]


class FeedForward(nn.Module):
    """``LN(x + drop(W2 relu(W1 x)))`` with a hidden width of D (score attention, sections III-C and IV-B)."""

    def __init__(self, embed_dim: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(embed_dim, embed_dim)
        self.outer = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, x: Float[Tensor, "Q D"]) -> Float[Tensor, "Q D"]:
        """Transform one vector an item."""
        update = self.outer(self.inner(x).relu())
        normed: Tensor = self.norm(x + self.dropout(update))
        return normed


class Answerer(Model):
    """Chooses among A answers: fusion, mean of the k vectors a side, feed-forward, concatenation, one linear layer.

    The architecture of score attention (section III-C). Without pictures it is the question-only model, whose side
    of the words ends in one vector without a partner.

    Args:
        image: the tower of pictures; None for the question-only model.
        text: the tower of questions.
        fusion: reduces a picture and a question together; None without pictures.
        answers: the answers to choose from.
        embed_dim: D.
        dropout: of the feed-forward layers.
        config: the resolved recipe that built it.

    Example:
        >>> model = openvse.load("runs/daquar/best")  # doctest: +SKIP
        >>> model.ask("kitchen.jpg", ["how many chairs are there?"], top_k=1)  # doctest: +SKIP
        [[Guess(answer='4', probability=0.62)]]
    """

    identity: ClassVar[tuple[str, ...]] = (
        "task",
        "embed_dim",
        "image",
        "text",
        "fusion",
        "head",
        "answers",
    )

    def __init__(
        self,
        image: Tower[ImageEncoder] | None,
        text: Tower[TextEncoder],
        fusion: Fusion | None,
        answers: AnswerVocabulary,
        *,
        embed_dim: int,
        dropout: float,
        config: Mapping[str, Any],
    ) -> None:
        super().__init__(config)
        self.image = image
        self.text = text
        self.fusion = fusion
        self.answers = answers
        self.image_layer = FeedForward(embed_dim, dropout) if image is not None else None
        self.text_layer = FeedForward(embed_dim, dropout)
        sides = 1 if image is None else 2
        self.classifier = nn.Linear(sides * embed_dim, len(answers))
        # Each answer starts at the probability 1/A; from one half, an epoch would go into telling that most are wrong.
        nn.init.constant_(self.classifier.bias, -math.log(len(answers)))

    @property
    def sees(self) -> bool:
        """Whether it looks at pictures."""
        return self.image is not None

    def forward(
        self, images: Inputs | None, image_of: Int[Tensor, "Q"], questions: Inputs
    ) -> Float[Tensor, "Q A"]:
        """Return the logit of each answer.

        Args:
            images: I pictures, each once; None for the question-only model.
            image_of: the row of each question's picture.
            questions: Q questions.

        Raises:
            ModelError: pictures are missing, for a model that sees.
        """
        if self.image is None or self.fusion is None or self.image_layer is None:
            return self._classify(self.text_layer(self.text(questions).vectors.mean(dim=1)))
        pictures, words = self.fusion.prepare(self._look(images), self.text(questions))
        x, z = self.fusion(pictures[image_of], words)
        sides = [self.image_layer(x.mean(dim=1)), self.text_layer(z.mean(dim=1))]
        return self._classify(torch.cat(sides, dim=-1))

    @torch.inference_mode()
    def attend(self, images: Inputs | None, image_of: Int[Tensor, "Q"], questions: Inputs) -> Attended | None:
        """Return the weights by which the fusion sums up picture and words; None where it has none. See ``forward``."""
        if self.fusion is None:
            return None
        with self.evaluating():
            pictures, words = self.fusion.prepare(self._look(images), self.text(questions))
            weights = self.fusion.weights(pictures[image_of], words)
        return None if weights is None else Attended(*weights)

    def ask(
        self,
        picture: ClipSource | None,
        questions: Sequence[str],
        *,
        top_k: int = 5,
        batch_size: int = 64,
    ) -> list[list[Guess]]:
        """Answer questions about a picture, which is looked at once for each batch of them.

        Args:
            picture: a path, bytes, a PIL image or an array ``uint8 [H, W, 3]``; not read by the question-only model.
            questions: one or more.
            top_k: how many answers to each, the most probable first.
            batch_size: questions at a time.

        Raises:
            BadImageError: the picture cannot be decoded.
            ModelError: there is no picture for a model that sees, or it reads precomputed features only.
            DataError: there is no question, or one is empty.
        """
        if not questions:
            raise DataError("there is no question: give at least one")
        images = self.read(picture)
        return [
            guesses
            for start in range(0, len(questions), batch_size)
            for guesses in self.answer(
                images, self.read_questions(questions[start : start + batch_size]), top_k
            )
        ]

    def read(self, picture: ClipSource | None) -> Inputs | None:
        """Return a picture as a batch of one, on the model's device; None for the question-only model."""
        if self.image is None:
            return None
        if picture is None:
            raise ModelError("this model looks at a picture, and none is given: name one")
        backbone = self.image.encoder.backbone
        return backbone.collate([backbone.read(picture)]).to(self.device)

    def read_questions(self, questions: Sequence[str]) -> Inputs:
        """Return the token ids of questions, on the model's device; raise DataError for an empty one."""
        if not all(question.strip() for question in questions):
            raise DataError("a question is empty: ask something, such as 'how many chairs are there?'")
        return pad(self.text.encoder.tokenize(questions)).to(self.device)

    @torch.inference_mode()
    def answer(self, images: Inputs | None, questions: Inputs, top_k: int) -> list[list[Guess]]:
        """Answer a batch of questions about one picture, the most probable answers first."""
        image_of = torch.zeros(len(questions), dtype=torch.int64, device=self.device)
        with self.evaluating():
            logits = self(images, image_of, questions)
        best, ids = logits.float().sigmoid().topk(min(top_k, len(self.answers)), dim=1)
        return [
            [Guess(self.answers.answers[answer], chance) for chance, answer in zip(*row, strict=True)]
            for row in zip(best.tolist(), ids.tolist(), strict=True)
        ]

    def save_assets(self, folder: Path) -> None:
        """Write the answers, and what the encoders need besides their weights."""
        if self.image is not None:
            self.image.encoder.save_assets(folder / "image")
        self.text.encoder.save_assets(folder / "text")
        self.answers.save(folder / ANSWERS_FILE)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Compute without dropout, and leave the mode as it was."""
        was_training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(was_training)

    def _look(self, images: Inputs | None) -> EmbeddingSet:
        if self.image is None or images is None:
            raise ModelError("this model looks at pictures, and none are given")
        seen: EmbeddingSet = self.image(images)
        return seen

    def _classify(self, x: Float[Tensor, "Q E"]) -> Float[Tensor, "Q A"]:
        logits: Tensor = self.classifier(x)
        return logits
