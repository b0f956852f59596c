"""The evaluation of a model that answers questions, which ``openvse evaluate`` hands over."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from openvse.cli.progress import warn
from openvse.data import QuestionSet, open_questions
from openvse.errors import DataError, OpenVSEError
from openvse.features_store import open_fitting
from openvse.files import write_whole
from openvse.model import Answerer, TwoTower
from openvse.recipe import VQARecipe, expect_task, parse_recipe
from openvse.types import FeatureSource
from openvse.vqa import WordNet, evaluate_answers, find_wordnet, predict


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
    answers = {prediction.question_id: prediction.answer for prediction in predictions}
    if len(answers) < len(chosen):
        warn(f"{len(chosen) - len(answers)} question(s) are left out: their pictures cannot be used")
    if out is not None:
        _write_predictions(out / "predictions.json", answers)
        if not any(question.answers for question in chosen.questions):
            typer.echo(f"written: {out / 'predictions.json'}; there are no answers to compare with", err=True)
            return
    kept = chosen.about({q.image_id for q in chosen.questions if q.question_id in answers})
    try:
        training = questions.split("train")
    except DataError:  # a set that is for testing alone has no baseline
        training = None
    recipe = expect_task(parse_recipe(model.config), VQARecipe)
    report = evaluate_answers(
        kept,
        [answers[question.question_id] for question in kept.questions],
        training=training,
        vocabulary=model.answers,
        wordnet=WordNet(wordnet) if (wordnet := find_wordnet()) else None,
        model=model.fingerprint,
        published=recipe.published_for(len(kept)),
    )
    typer.echo(report.to_markdown())
    if out is not None:
        report.save(out)
        typer.echo(
            f"written: {out / 'report.json'}, {out / 'report.md'}, {out / 'predictions.json'}", err=True
        )


def _store(model: Answerer, features: Sequence[Path]) -> FeatureSource | None:
    if not features or model.image is None:
        return None
    if len(features) > 1:
        raise OpenVSEError("--features is given several times for one model: give it once")
    encoder = model.image.encoder
    return open_fitting(features[0], fingerprint=encoder.fingerprint, dim=encoder.feature_dim)


def _write_predictions(path: Path, answers: Mapping[str, str]) -> None:
    """Write the format of VQA 2.0's results, one entry a line; its identifiers of questions are numbers."""
    entries = [
        {"question_id": int(number) if number.isdecimal() else number, "answer": answer}
        for number, answer in answers.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    write_whole(path, f"[\n{lines}\n]\n")
