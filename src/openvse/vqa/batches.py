"""Batches of questions: in a seeded order for training, and grouped by image for answering."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from openvse.batches.loaders import ImageLoader, TextLoader
from openvse.batches.pairs import BatchKey
from openvse.corpus.questions import QuestionSet
from openvse.errors import BadImageError, DataError
from openvse.types import QuestionBatch
from openvse.vqa.answers import AnswerVocabulary

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
