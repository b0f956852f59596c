"""Visual question answering as a task: cross-entropy for each answer, accuracy on the validation split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from typing import Any, ClassVar

import numpy as np
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from openvse.batches.pairs import with_features
from openvse.corpus.trained_on import Seen, seen_in_training
from openvse.datasets.check import leakage_between_splits
from openvse.errors import DataError, TrainingError
from openvse.model.base import Model
from openvse.training.inputs import (
    AUTO,
    RunInputs,
    check_stores,
    count_words,
    data_of,
    drawn,
    open_features,
    open_text_features,
    small_split_warning,
    source_of,
    spread,
    with_phases_for,
)
from openvse.training.records import EQUAL_ANSWERS
from openvse.training.task import Step, Task
from openvse.types import FeatureSource, QuestionBatch
from openvse_papers.datasets.published import open_questions
from openvse_papers.vqa.answerer import Answerer, QuestionDataset, build_answerer, predict_batches, question_dataset
from openvse_papers.vqa.answers import AnswerVocabulary, QuestionSet
from openvse_papers.vqa.evaluate import score_intervals, score_replicates
from openvse_papers.vqa.recipe import VQARecipe


class AnsweringTask(Task[QuestionBatch]):
    """Trains a model that answers questions."""

    metric = "accuracy"
    unit = "questions"
    collapse: ClassVar[str] = EQUAL_ANSWERS

    model: Answerer

    def __init__(
        self,
        recipe: VQARecipe,
        model: Answerer,
        training: QuestionDataset,
        validation: QuestionDataset,
        held_out: QuestionSet,
        features: FeatureSource | None,
        data: Mapping[str, Any],
        accelerator: Accelerator,
    ) -> None:
        super().__init__(recipe, model, (), training, data, accelerator)
        self._validation, self._held_out, self._features = validation, held_out, features
        prior = training.frequencies()
        self._frequent, self._chance = int(prior.argmax()), 0.0
        # The prediction of a model that knows only the frequencies.
        self._uninformed = prior.clamp(1e-6, 1 - 1e-6).logit().to(accelerator.device)

    def step(self, wrapped: nn.Module, batch: QuestionBatch, phase: int) -> Step:
        logits = wrapped(batch.images, batch.image_of, batch.questions)
        uninformed = self._uninformed.expand_as(logits)
        return Step(
            {"loss": cross_entropy(logits, batch)},
            batch.description,
            at_collapse=lambda: cross_entropy(uninformed, batch),
            diagnostics=dict,
        )

    def validate(self) -> dict[str, float]:
        return self._measure(self.model, self._validation)

    def seen_by(self, provenance: Mapping[str, Any]) -> Seen:
        return seen_in_training(provenance, self._held_out.as_corpus())

    def validate_start(self, start: Model) -> dict[str, float]:
        """Return the metrics of the start on the validation split with its own words and answers."""
        if not isinstance(start, Answerer):
            raise TrainingError(f"it {start.purpose}, so its task differs")
        ours, own = self.model.image, start.image
        fits = ours is None or own is None or own.encoder.fingerprint in (None, ours.encoder.fingerprint)
        stores = self._features if fits else None
        _, dataset = question_dataset(start.to(self.model.device), self._held_out, stores)
        return self._measure(start, dataset)

    def _measure(self, model: Answerer, dataset: QuestionDataset) -> dict[str, float]:
        right: list[np.ndarray] = []
        by_frequency = 0.0
        images: list[np.ndarray] = []
        loss = 0.0
        for positions, batch, logits in predict_batches(model, dataset):
            right.append(batch.targets.gather(1, logits.argmax(dim=1, keepdim=True)).squeeze(1).cpu().numpy())
            images.append(dataset.image_of[positions])
            by_frequency += float(batch.targets[:, self._frequent].sum())
            loss += float(cross_entropy(logits, batch)) * batch.divisor
        if not right:
            raise DataError("no validation question can be answered, because no image can be used")
        worth, of_image = np.concatenate(right), np.unique(np.concatenate(images), return_inverse=True)[1]
        self._chance = 100 * by_frequency / len(worth)
        self.replicates = score_replicates({"accuracy": worth}, of_image, resamples=1000, seed=0)
        self.intervals = score_intervals(self.replicates)
        return {"accuracy": 100 * float(worth.sum(dtype=np.float64)) / len(worth), "loss": loss / len(worth)}

    def summary(self, metrics: Mapping[str, float]) -> str:
        return f"accuracy {metrics['accuracy']:5.2f} (most frequent answer {self._chance:.2f})"


def cross_entropy(logits: Float[Tensor, "Q A"], batch: QuestionBatch) -> Float[Tensor, ""]:
    """Return binary cross-entropy, summed over the answers and averaged over the questions (section III-C)."""
    total = F.binary_cross_entropy_with_logits(logits.float(), batch.targets, reduction="sum")
    return total / batch.divisor


def _limited(questions: QuestionSet, recipe: VQARecipe) -> QuestionSet:
    """Return the questions with the training images that ``data.limit`` leaves."""
    labels, images = np.asarray(questions.split_labels()), questions.images_of()
    learned = drawn(np.unique(images[labels == "train"]), recipe)
    is_used = (labels != "train") | np.isin(images, learned)
    named = (replace(q, split=label) for q, label in zip(questions.questions, labels.tolist(), strict=True))
    return replace(questions, questions=tuple(compress(named, is_used)))


def open_answering(recipe: VQARecipe, inputs: RunInputs) -> AnsweringTask:
    """Open data and features, and build the model and its answers."""
    with_images = recipe.image is not None and recipe.data.features in (None, AUTO)
    questions = open_questions(source_of(recipe), require_images=with_images, allow_outside=recipe.data.allow_outside)
    if recipe.data.limit is not None:
        questions = _limited(questions, recipe)
    recipe = with_phases_for(recipe, len(questions.split("train").image_ids), inputs.watcher)
    asked = questions.split("train").questions
    answers = AnswerVocabulary.from_answers([each.answers for each in asked], min_count=recipe.answers.min_count)
    texts = [question.text for question in asked]
    model = build_answerer(recipe, questions=texts, answers=answers, seed=recipe.seed, start=inputs.start)
    corpus, features = questions.as_corpus(), None
    image = None if model.image is None else model.image.encoder
    check_stores(recipe, corpus, image, model.text.encoder)
    inputs.begin(model)
    coverage = count_words(model.text.encoder, texts, inputs, "question")
    if model.image is not None:
        features = open_features(recipe, model.image.encoder, corpus, inputs)
        corpus = with_features(corpus, features)
        questions = replace(questions.about(corpus.image_ids), problems=corpus.problems)
    for problem in (*questions.problems, *leakage_between_splits(corpus)):
        inputs.watcher.warn(problem)
    held_out = questions.split("validation")
    if recipe.training.validation_images is not None:
        ids = held_out.image_ids
        held_out = held_out.about([ids[i] for i in spread(len(ids), recipe.training.validation_images)])
    to_learn = questions.split("train")
    texts = [question.text for each in (to_learn, held_out) for question in each.questions]
    stored = open_text_features(recipe, model.text.encoder, texts, inputs)
    _, training = question_dataset(model, to_learn, features, text_features=stored, augment=recipe.data.random_views)
    held_out, validation = question_dataset(model, held_out, features, text_features=stored)
    if warning := small_split_warning(len(held_out), "questions", "an accuracy"):
        inputs.watcher.warn(warning)
    task = AnsweringTask(recipe, model, training, validation, held_out, features, data_of(corpus), inputs.accelerator)
    task.coverage = coverage
    task.splits = {"train": to_learn.identity(ordered=True), "validation": held_out.identity()}
    return task
