"""What every shipped recipe of answering must hold: it builds, a step lowers the loss, it saves and reloads equal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contracts.conftest import recipes_without_start
from openvse.functional import pad
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe
from openvse.types import QuestionBatch
from openvse_papers.vqa.answerer import Answerer, build_answerer
from openvse_papers.vqa.answers import AnswerVocabulary
from openvse_papers.vqa.training import cross_entropy

ANSWERING = recipes_without_start()["vqa"]
QUESTIONS = ["what is on the table", "how many chairs are there", "what colour is it", "what is left of the lamp"]
ANSWERS = ("table", "2", "white", "lamp", "chair")


@pytest.mark.medium
@pytest.mark.parametrize("name", ANSWERING)
def test_recipe_builds_learns_saves_and_reloads(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, ["embed_dim=32", "text.encoder.min_count=1"])
    answers = AnswerVocabulary(ANSWERS, votes=False)
    model = build_answerer(recipe, questions=QUESTIONS, answers=answers).eval()
    images = None
    if model.image is not None:
        images = pad([torch.randn(4 + n, model.image.encoder.feature_dim) for n in range(2)])
    targets = torch.from_numpy(answers.targets([[answer] for answer in ANSWERS[:4]]))
    rows = torch.tensor([0, 1, 1, 0])
    batch = QuestionBatch(images, rows, pad(model.text.encoder.tokenize(QUESTIONS)), targets, divisor=4.0)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    for _ in range(2):
        loss = cross_entropy(model(batch.images, batch.image_of, batch.questions), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[1] < losses[0]
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad), "a part does not learn"
    with torch.inference_mode():
        logits = model(batch.images, batch.image_of, batch.questions)
        again = load_as(Answerer, model.save(tmp_path))(batch.images, batch.image_of, batch.questions)
    assert torch.equal(logits, again)
