"""A model that answers questions about images, or from the questions only, with its batches and its answers.

Batches of questions are in a seeded order for training, and grouped by image for answering, where each question is
answered once. Files of answers have the format of VQA's evaluation server and its published code.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import Dataset

from openvse.aggregators.simple import Aggregator
from openvse.assembly.parts import (
    build_aggregator,
    build_image_encoder,
    build_part,
    build_text_encoder,
    describe_part,
    describe_tower,
)
from openvse.batches import pairs
from openvse.batches.pairs import BatchKey, ImageLoader, image_loader, own_features, with_features
from openvse.encoders import ImageEncoder, TextEncoder
from openvse.errors import BadImageError, DataError, ModelError, RecipeError
from openvse.features.store import FeatureStore
from openvse.files import read_json, write_whole
from openvse.functional import pad
from openvse.fusion import FUSIONS
from openvse.fusion.base import Fusion
from openvse.media.listing import skipped
from openvse.media.videos import ClipSource
from openvse.model.base import Model
from openvse.model.start import Start
from openvse.model.two_tower import Tower, evaluating
from openvse.tokenization.vocabulary import UnknownWord, unknown_line
from openvse.types import FeatureSource, Inputs, OnProgress, QuestionBatch
from openvse_papers.vqa.answers import AnswerVocabulary, QuestionSet
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
        return cast(Tensor, self.norm(x + self.dropout(self.outer(self.inner(x).relu()))))


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

    def forward(self, images: Inputs | None, image_of: Int[Tensor, "Q"], questions: Inputs) -> Float[Tensor, "Q A"]:
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
        self, image: ClipSource | None, questions: str | Sequence[str], *, top_k: int = 5, batch_size: int = 64
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
        if not questions:
            raise DataError("there is no question: give at least one")
        if not (asked := [question for question in questions if question.strip()]):
            raise DataError("every question is empty: ask something, such as 'how many chairs are there?'")
        if empty := len(questions) - len(asked):
            _logger.warning("an empty question has no answer (%d of %d are empty)", empty, len(questions))
        unknown = self.unknown_words(asked)
        if line := unknown_line(chain.from_iterable(unknown)):
            _logger.warning("%s", line)
        answers: list[Answered] = []
        with evaluating(self):
            for start in range(0, len(asked), batch_size):
                tokens = self.read_questions(asked[start : start + batch_size])
                answers += self._answer(images, tokens, top_k)
        pairs = zip(answers, unknown, strict=True)
        progress = (answered._replace(unknown_words=tuple(words)) for answered, words in pairs)
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


# Encoders use a gradient to find the trainable parameters of a backbone, also if the caller is in inference mode.
@torch.inference_mode(False)
@torch.enable_grad()
def build_answerer(
    spec: AnswererSpec,
    *,
    questions: Sequence[str] = (),
    answers: AnswerVocabulary | None = None,
    assets: Path | None = None,
    seed: int = 0,
    start: Start | None = None,
) -> Answerer:
    """Build an untrained model.

    Args:
        spec: the names of the parts. A recipe for visual question answering is such a spec.
        questions: the training questions, from which a vocabulary is built, never validation or test questions.
        answers: the answers from which the model chooses. Not read if there are assets.
        assets: a model folder whose answers, vocabulary, tokenizer and backbone configuration are read instead.
        seed: the seed of the initial weights.
        start: a model whose files are read for the encoders that agree with its own. ``Start.give`` then copies its
            weights. A vocabulary grows by the words of the questions.

    Raises:
        RecipeError: a part is unknown, an option is wrong, or the parts do not fit together.
        ModelError: the assets are damaged.
    """
    own = AnswererSpec.of(spec.model_dump(mode="json"))
    if assets is not None:
        answers = AnswerVocabulary.load(assets / ANSWERS_FILE)
    if answers is None:
        raise RecipeError("a new model needs answers to choose from: give training questions with answers")
    torch.manual_seed(seed)
    image = None
    if spec.image is not None:
        files = assets if start is None else start.assets_for("image", own.image)
        image_encoder = build_image_encoder(spec.image.encoder, spec.embed_dim, files and files / "image")
        image = Tower(image_encoder, build_aggregator(spec.image, spec.embed_dim, "image", image_encoder))
    files = assets if start is None else start.assets_for("text", own.text)
    text_encoder = build_text_encoder(spec.text, spec.embed_dim, questions, files, grow=assets is None)
    text = Tower(text_encoder, build_aggregator(spec.text, spec.embed_dim, "text", text_encoder))
    fusion: Fusion | None = None
    if spec.fusion is not None:
        fusion = build_part(FUSIONS, spec.fusion, "fusion", {"embed_dim": spec.embed_dim})
    for side, part, tower in (("image", spec.image, image), ("text", spec.text, text)):
        if part is not None and tower is not None:
            _check_aggregator(spec, f"{side}.aggregator {part.aggregator.name}", tower.aggregator, side)
    return Answerer(
        image,
        text,
        fusion,
        answers,
        embed_dim=spec.embed_dim,
        dropout=spec.head.dropout,
        spec=own if assets else own.portable(),
    )


def _check_aggregator(spec: AnswererSpec, name: str, aggregator: Aggregator, side: str) -> None:
    """Raise RecipeError unless exactly one of an aggregator and the fusion sums up the tokens."""
    if spec.fusion is None and not aggregator.fixed_k:
        raise RecipeError(
            f"{name} keeps every token, and without images no fusion sums them up: choose one that makes the same "
            f"number of vectors for every question, such as score_attention"
        )
    if spec.fusion is not None and aggregator.fixed_k:
        raise RecipeError(
            f"{name} sums up before fusion {spec.fusion.name} could let image and question read each other: "
            f"set {side}.aggregator: tokens, and aggregate by fusion: {{name: pooled, aggregator: ...}}"
        )


PlacedQuestions: TypeAlias = tuple[Int[np.ndarray, "Q"], QuestionBatch]
"""A batch with the positions of its questions in the set."""


class QuestionDataset(Dataset[QuestionBatch]):
    """Builds batches of a question set from the questions that they hold. ``EpochBatches`` over Q gives their order.

    Targets are made one batch at a time, because all of VQA 2.0 at once would take 5 GiB.
    """

    def __init__(
        self, questions: QuestionSet, images: ImageLoader | None, texts: pairs.TextLoader, answers: AnswerVocabulary
    ) -> None:
        if len(texts) != len(questions) or (images is not None and len(images) != len(questions.image_ids)):
            raise DataError(
                f"{questions.name} has {len(questions)} questions about {len(questions.image_ids)} images, but got "
                f"{len(texts)} texts and another number of images: make them from one question set"
            )
        self._questions, self._images, self._answers = questions, images, answers
        self._texts = texts
        self.image_of = questions.images_of()

    def __len__(self) -> int:
        return len(self._questions)

    def frequencies(self, block_size: int = 4096) -> Float[Tensor, "A"]:
        """Return the mean of the targets over all questions, which is the frequency of each answer."""
        total = np.zeros(len(self._answers))
        for start in range(0, len(self), block_size):
            asked = self._questions.questions[start : start + block_size]
            total += self._answers.targets([question.answers for question in asked]).sum(axis=0)
        return torch.from_numpy(total / len(self)).float()

    def by_image(self) -> Int[np.ndarray, "Q"]:
        """Return the positions of all questions, ordered by their images."""
        return np.argsort(self.image_of, kind="stable")

    def __getitem__(self, key: BatchKey) -> QuestionBatch:
        """Build the share of a batch for one process. Images are divided among processes along with their questions."""
        return self.load(key)[1]

    def load(self, key: BatchKey) -> PlacedQuestions:
        """Return the batch ``dataset[key]``, and the positions of its questions, in their order."""
        images = np.unique(self.image_of[key.pairs])[key.rank :: key.num_processes]
        chosen = key.pairs[np.isin(self.image_of[key.pairs], images)]
        if not len(chosen):
            raise DataError(
                f"a batch of {len(key.pairs)} questions has fewer images than the {key.num_processes} processes: "
                "use larger batches or fewer processes"
            )
        inputs = None
        if self._images is not None:
            inputs, usable = self._images.load(images, key.view)
            images = images[usable]
            chosen = chosen[np.isin(self.image_of[chosen], images)]
        rows = np.searchsorted(images, self.image_of[chosen]) if inputs else np.zeros(len(chosen), np.int64)
        asked = [self._questions.questions[position] for position in chosen.tolist()]
        return chosen, QuestionBatch(
            images=inputs,
            image_of=torch.from_numpy(rows),
            questions=self._texts.take(chosen),
            targets=torch.from_numpy(self._answers.targets([question.answers for question in asked])),
            divisor=float(len(chosen)) if key.num_processes == 1 else len(key.pairs) / key.num_processes,
            description=f"{len(asked)} questions: {asked[0].question_id} to {asked[-1].question_id}",
        )


def question_batches(dataset: QuestionDataset, batch_size: int) -> Iterator[PlacedQuestions]:
    """Yield all questions once, ordered by image. Questions whose image cannot be used are left out."""
    order = dataset.by_image()
    for start in range(0, len(order), batch_size):
        try:
            yield dataset.load(BatchKey(order[start : start + batch_size]))
        except BadImageError:
            continue  # each of the images is logged already


_MAX_BYTES = 1 << 30


class Predictions(NamedTuple):
    """The questions of a set that a model can answer, its most probable answer to each, and their probabilities."""

    questions: QuestionSet
    answers: tuple[str, ...]
    probabilities: tuple[float, ...]


def question_dataset(
    model: Answerer,
    questions: QuestionSet,
    features: FeatureSource | None = None,
    *,
    text_features: FeatureStore | None = None,
    augment: bool = False,
) -> tuple[QuestionSet, QuestionDataset]:
    """Prepare questions for a model. Questions about images that a store lacks are left out and reported.

    Args:
        model: the model, for its tokens and answers.
        features: stored local features of its images. Without them the images are decoded.
        text_features: stored token states of the questions. Without them the text model reads the questions.
        augment: whether to decode random views, for training.

    Returns:
        The remaining questions, and their batches.

    Raises:
        StoreError: the store has none of the images, or the store of texts lacks a question.
    """
    images: ImageLoader | None = None
    if model.image is not None:
        corpus = questions.as_corpus()
        features = own_features(corpus, model.image.encoder.backbone) if features is None else features
        corpus = with_features(corpus, features)
        questions = replace(questions.about(corpus.image_ids), problems=corpus.problems)
        images = image_loader(model.image.encoder.backbone, corpus, features, augment=augment)
    asked = [question.text for question in questions.questions]
    texts = pairs.text_loader(model.text.encoder, asked, text_features)
    return questions, QuestionDataset(questions, images, texts, model.answers)


def predict_batches(
    model: Answerer, dataset: QuestionDataset, *, batch_size: int = 128
) -> Iterator[tuple[Int[np.ndarray, "Q"], QuestionBatch, Float[Tensor, "Q A"]]]:
    """Yield positions, batches and logits, with the model in evaluation mode."""
    with evaluating(model):
        for positions, batch in question_batches(dataset, batch_size):
            moved = batch.to(model.device)
            with torch.inference_mode():
                logits = model(moved.images, moved.image_of, moved.questions).float()
            yield positions, moved, logits


def predict(
    model: Answerer,
    questions: QuestionSet,
    features: FeatureSource | None = None,
    *,
    text_features: FeatureStore | None = None,
    batch_size: int = 128,
    progress: OnProgress | None = None,
) -> Predictions:
    """Answer every question of a set, in order, except those about images that cannot be used."""
    questions, dataset = question_dataset(model, questions, features, text_features=text_features)
    found: dict[int, tuple[str, float]] = {}
    for positions, _, logits in predict_batches(model, dataset, batch_size=batch_size):
        best, ids = logits.sigmoid().max(dim=1)
        for position, chance, answer in zip(positions.tolist(), best.tolist(), ids.tolist(), strict=True):
            found[position] = model.answers.answers[answer], chance
        if progress is not None:
            progress("answering questions", len(found), len(questions))
    if not found:
        raise DataError(f"{questions.name}: no question can be answered, because no image can be used")
    positions = np.array(sorted(found))
    answers, probabilities = zip(*(found[position] for position in positions.tolist()), strict=True)
    bad = [questions.questions[number].question_id for number in range(len(questions)) if number not in found]
    problems = (*questions.problems, *skipped(bad, "question(s) about images that cannot be used"))
    return Predictions(replace(questions.select(positions), problems=problems), answers, probabilities)


def write_results(path: Path, questions: QuestionSet, predictions: Sequence[str]) -> None:
    """Write ``[{"question_id": 262148000, "answer": "down"}, ...]``, by rename, so that a file is never incomplete.

    Identifiers that are numbers are written as numbers, as VQA's server expects.

    Args:
        path: the file. Its folder is created if it is missing.
        questions: Q questions.
        predictions: an answer to each of them.

    Raises:
        DataError: the numbers of questions and predictions differ.
    """
    if len(predictions) != len(questions):
        raise DataError(f"{questions.name}: {len(predictions)} answers to {len(questions)} questions: give as many")
    entries: list[dict[str, int | str]] = []
    for question, answer in zip(questions.questions, predictions, strict=True):
        name = question.question_id
        is_number = name.isdecimal() and str(int(name)) == name
        entries.append({"question_id": int(name) if is_number else name, "answer": answer})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(entries, ensure_ascii=False))


def read_results(path: Path, questions: QuestionSet) -> tuple[str, ...]:
    """Return the answers in such a file of any origin, in the order of the questions.

    Answers to other questions are ignored, so a file for a whole data set serves each split.

    Raises:
        DataError: the file cannot be read, has another format, or answers a question twice or not at all.
    """
    answers: dict[str, str] = {}
    try:
        for entry in read_json(path, most=_MAX_BYTES):
            if (number := str(entry["question_id"])) in answers:
                raise DataError(f"{path}: question {number} is answered twice: answer it once")
            answers[number] = str(entry["answer"])
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}): check the path") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f'{path}: not a list of {{"question_id": 1, "answer": "yes"}} ({error!r}): write it as for VQA\'s server'
        ) from error
    if missing := [q.question_id for q in questions.questions if q.question_id not in answers]:
        raise DataError(f"{path}: {len(missing)} of {len(questions)} lack an answer (first: {missing[0]}): answer all")
    return tuple(answers[question.question_id] for question in questions.questions)
