"""Builds a model that answers questions from its spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from openvse.assembly.parts import build_aggregator, build_image_encoder, build_part, build_text_encoder
from openvse.errors import RecipeError
from openvse.fusion import FUSIONS
from openvse.fusion.base import Fusion
from openvse.model.start import Start
from openvse.model.tower import Tower
from openvse.specs.model import TowerSpec
from openvse_papers.vqa.answerer import ANSWERS_FILE, Answerer
from openvse_papers.vqa.answers import AnswerVocabulary
from openvse_papers.vqa.recipe import AnswererSpec


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
        raise RecipeError(
            "a new model that answers questions needs answers to choose from: give training questions with answers"
        )
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
    _check_aggregators(spec, {"image": image, "text": text})
    return Answerer(
        image,
        text,
        fusion,
        answers,
        embed_dim=spec.embed_dim,
        dropout=spec.head.dropout,
        spec=own if assets else own.portable(),
    )


def _check_aggregators(spec: AnswererSpec, towers: Mapping[str, Tower[Any] | None]) -> None:
    """Raise RecipeError unless exactly one of an aggregator and the fusion sums up the tokens."""
    sides: dict[str, TowerSpec | None] = {"image": spec.image, "text": spec.text}
    for side, tower in towers.items():
        tower_spec = sides[side]
        if tower is None or tower_spec is None:
            continue
        name = f"{side}.aggregator {tower_spec.aggregator.name}"
        if spec.fusion is None and not tower.aggregator.fixed_k:
            raise RecipeError(
                f"{name} keeps every token, and without images no fusion sums them up: choose one that makes the "
                f"same number of vectors for every question, such as score_attention"
            )
        if spec.fusion is not None and tower.aggregator.fixed_k:
            raise RecipeError(
                f"{name} sums up before fusion {spec.fusion.name} could let image and question read each other: "
                f"set {side}.aggregator: tokens, and aggregate by fusion: {{name: pooled, aggregator: ...}}"
            )
