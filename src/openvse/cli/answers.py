"""The evaluation of a model that answers questions, which ``openvse evaluate`` hands over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import typer

from openvse.cli.progress import warn
from openvse.cli.stores import open_store
from openvse.corpus import QuestionSet
from openvse.datasets import open_questions
from openvse.errors import DataError, OpenVSEError
from openvse.model import TwoTower
from openvse.specs import expect_task
from openvse.tasks.recipes import parse_recipe
from openvse.types import FeatureSource
from openvse.vqa.answerer import Answerer
from openvse.vqa.evaluator import evaluate_answers
from openvse.vqa.predict import predict
from openvse.vqa.recipe import VQARecipe
from openvse.vqa.results import write_results
from openvse.vqa.wordnet import WordNet, find_wordnet

PREDICTIONS = "predictions.json"


def evaluate_answerer(
    models: Sequence[TwoTower | Answerer],
    data: str,
    *,
    split: str,
    features: Sequence[Path],
    out: Path | None,
    folds: int,
) -> None:
    """Measure one model's answers, and write the report and the predictions.

    Raises:
        OpenVSEError: several models, or folds, which are of retrieval; and whatever data and store are refused for.
    """
    model = models[0]
    if len(models) > 1 or not isinstance(model, Answerer):
        raise OpenVSEError("a model that answers questions is evaluated by itself: name it alone")
    if folds > 1:
        raise OpenVSEError("--folds is of retrieval: leave it out for a model that answers questions")
    store = _store(model, features)
    questions = open_questions(data, require_images=model.sees and store is None)
    chosen: QuestionSet = questions if split == "all" else questions.split(split)
    predictions = predict(model, chosen, store)
    found = {prediction.question_id: prediction.answer for prediction in predictions}
    kept = chosen.select(np.flatnonzero([question.question_id in found for question in chosen.questions]))
    answers = [found[question.question_id] for question in kept.questions]
    if len(kept) < len(chosen):
        warn(f"{len(chosen) - len(kept)} question(s) are left out: their pictures cannot be used")
    if out is not None:
        write_results(out / PREDICTIONS, kept, answers)
        if not any(question.answers for question in kept.questions):
            typer.echo(f"written: {out / PREDICTIONS}; there are no answers to compare with", err=True)
            return
    try:
        training = questions.split("train")
    except DataError:  # a set that is for testing alone has no baseline
        training = None
    recipe = expect_task(parse_recipe(model.config), VQARecipe)
    report = evaluate_answers(
        kept,
        answers,
        training=training,
        vocabulary=model.answers,
        wordnet=WordNet(wordnet) if (wordnet := find_wordnet()) else None,
        model=model.fingerprint,
        published=recipe.published_for(len(kept)),
    )
    typer.echo(report.to_markdown())
    if out is not None:
        report.save(out)
        typer.echo(f"written: {out / 'report.json'}, {out / 'report.md'}, {out / PREDICTIONS}", err=True)


def _store(model: Answerer, features: Sequence[Path]) -> FeatureSource | None:
    if not features or model.image is None:
        return None
    if len(features) > 1:
        raise OpenVSEError("--features is given several times for one model: give it once")
    return open_store(model.image.encoder, features[0])
