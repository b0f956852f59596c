"""The answers of a model to a question set, and files of them.

Batches of questions are in a seeded order for training, and grouped by image for answering, where each question is
answered once. The files have the format of VQA's evaluation server and its published code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from openvse.batches.loaders import (
    ImageLoader,
    TextLoader,
    image_loader,
    own_features,
    text_loader,
    with_features,
)
from openvse.batches.pairs import BatchKey
from openvse.errors import BadImageError, DataError
from openvse.features.store import FeatureStore
from openvse.files import read_json, write_whole
from openvse.media.listing import skipped
from openvse.model.tower import evaluating
from openvse.types import FeatureSource, OnProgress, QuestionBatch
from openvse_papers.vqa.answerer import Answerer
from openvse_papers.vqa.answers import AnswerVocabulary
from openvse_papers.vqa.questions import QuestionSet

PlacedQuestions: TypeAlias = tuple[Int[np.ndarray, "Q"], QuestionBatch]
"""A batch with the positions of its questions in the set."""


class QuestionDataset(Dataset[QuestionBatch]):
    """Builds batches of a question set from the questions that they hold. ``EpochBatches`` over Q gives their order.

    Targets are made one batch at a time, because all of VQA 2.0 at once would take 5 GiB.
    """

    def __init__(
        self,
        questions: QuestionSet,
        images: ImageLoader | None,
        texts: TextLoader,
        answers: AnswerVocabulary,
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
    texts = text_loader(model.text.encoder, asked, text_features)
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
        raise DataError(
            f"{questions.name}: {len(predictions)} predictions for {len(questions)} questions: give one for each"
        )
    entries = [
        {"question_id": _number(question.question_id), "answer": answer}
        for question, answer in zip(questions.questions, predictions, strict=True)
    ]
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
    missing = [
        question.question_id for question in questions.questions if question.question_id not in answers
    ]
    if missing:
        raise DataError(
            f"{path}: no answer to {len(missing)} of the {len(questions)} questions of {questions.name} "
            f"(first: {missing[0]}): answer all of them"
        )
    return tuple(answers[question.question_id] for question in questions.questions)


def _number(question_id: str) -> int | str:
    is_number = question_id.isdecimal() and str(int(question_id)) == question_id
    return int(question_id) if is_number else question_id
