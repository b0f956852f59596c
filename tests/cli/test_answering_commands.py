"""Answering from the shell: train on images, evaluate, ask, and what does not go together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from album import COLOURS, answering_recipe, write_pictured_questions
from PIL import Image

import openvse
from tests.naming import names

pytestmark = pytest.mark.medium

SPLITS = ("train", "train", "train", "validation", "test")


@pytest.fixture(scope="module")
def answered(tmp_path_factory, works) -> Path:
    """Train once; the folder holds ``data`` and ``run``."""
    root = tmp_path_factory.mktemp("answered")
    data = write_pictured_questions(root / "data")
    tree = answering_recipe(data)
    (root / "tiny.yaml").write_text(yaml.safe_dump(tree))
    result = works("train", root / "tiny.yaml", "--out", root / "run")
    assert result.stdout == f"{root / 'run' / 'best'}\n"
    assert names(result.stderr, "50.00", "accuracy")
    assert names(result.stderr, "warning: ", 6, "95 %")
    return root


def test_evaluate_reports_and_writes_predictions(answered: Path, works, tmp_path: Path) -> None:
    out = tmp_path / "report"
    result = works("evaluate", answered / "run" / "best", "--on", f"question_folder:{answered / 'data'}", "--out", out)
    assert "14.png" in result.stderr
    report = json.loads((out / "report.json").read_text())
    assert [line for line in report["problems"] if line.startswith("skipped 2 question(s)") and "14.png" in line]
    assert report["protocol"]["num_questions"]["all"] == 4 and report["model"]
    predictions = json.loads((out / "predictions.json").read_text())
    assert [entry["question_id"] for entry in predictions] == ["04.png#0", "04.png#1", "09.png#0", "09.png#1"]
    assert {entry["answer"] for entry in predictions} <= {*COLOURS, "yes"}


def test_stored_features_give_the_same(answered: Path, result_of) -> None:
    words = ("evaluate", answered / "run" / "best", "--on", f"question_folder:{answered / 'data'}")
    images, store = (
        result_of(*words, *stored)["report"]["scores"] for stored in ((), ("--features", answered / "run" / "features"))
    )
    assert images == store


def test_questions_without_answers_are_answered(answered: Path, works, tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    asked = {"file_name": "a.png", "question": "what colour is it", "question_id": "17", "split": "test"}
    (tmp_path / "metadata.jsonl").write_text(json.dumps(asked) + "\n")
    out = tmp_path / "out"
    result = works("evaluate", answered / "run" / "best", "--on", f"question_folder:{tmp_path}", "--out", out)
    assert "answers" in result.stderr
    (entry,) = json.loads((out / "predictions.json").read_text())
    assert entry["question_id"] == 17  # a number where it is one, as in VQA 2.0


def test_ask_prints_answers_and_writes_a_page(answered: Path, invoke, works, tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    photo = answered / "data" / "00.png"
    result = works("ask", answered / "run" / "best", photo, "what colour is it", "is it red", "-k", 2, "--html", page)
    lines = result.stdout.splitlines()
    assert [lines[0], lines[3]] == ["what colour is it", "is it red"] and len(lines) == 6
    first, second = (float(line.split()[0]) for line in lines[1:3])
    assert 1 > first >= second > 0
    assert len(result.stderr.splitlines()) == 2, "the page, and that probabilities need not add up to 1"
    document = json.loads(invoke("ask", answered / "run" / "best", photo, "is it red", "-k", 2, "--json", "-q").stdout)
    assert (document["schema"], document["command"]) == (1, "ask")
    assert document["result"]["image"] == str(photo)
    (asked,) = document["result"]["questions"]
    assert asked["question"] == "is it red" and len(asked["answers"]) == 2
    assert asked["answers"][0].keys() == {"answer", "probability"}
    words = ("ask", answered / "run" / "best", photo, "is it a zebra", " ", "--json", "-q")
    document = json.loads(invoke(*words).stdout)
    asked, empty = document["result"]["questions"]
    assert {"word": "zebra", "read_as": None} in asked["unknown_words"] and empty["answers"] == []
    assert len(document["warnings"]) == 2
    text = page.read_text()
    assert "<h2>is it red</h2>" in text and text.isascii() and "http" not in text


def test_what_does_not_go_together(answered: Path, trained: Path, refused, tmp_path: Path) -> None:
    answers, ranks = answered / "run" / "best", trained / "run" / "best"
    data, photo = f"question_folder:{answered / 'data'}", answered / "data" / "00.png"
    for words, named in (
        (("index", answers, answered / "data", "--out", tmp_path / "index"), [answers]),
        (("search", answers, trained / "index", "a dog"), [answers]),
        (("ask", ranks, photo, "what is it"), [ranks]),
        (("evaluate", answers, ranks, "--on", data), ["vqa, retrieval"]),
        (("evaluate", ranks, answers, "--on", data), ["retrieval, vqa"]),
        (("evaluate", answers, "--on", data, "--folds", 5), ["--folds"]),
        (("evaluate", answers, "--on", data, "--features", "a", "--features", "b"), ["--features"]),
        (("ask", answers, answered / "data" / "00.jpg", "what is it"), ["00.jpg"]),
        (("ask", answers, answered / "data" / "14.png", "what is it"), ["14.png"]),
        (("ask", answers, photo, " "), []),
        (("ask", answers, photo, photo), [photo]),
        (("train", trained / "tiny.yaml", "--out", answered / "run", "--resume"), [answered / "run"]),
    ):
        assert names(refused(*words), *named), words


def test_exchanged_images_are_a_control(answered: Path, result_of) -> None:
    data = f"question_folder:{answered / 'data'}"
    words = ("evaluate", answered / "run" / "best", "--on", data, "--split", "train")
    report = result_of(*words, "--exchanged")["report"]
    plain = result_of(*words)["report"]
    label, *_ = report["baselines"]
    assert label == "this model, images exchanged"
    assert report["scores"] == plain["scores"]
    assert report["baselines"][label]["accuracy"] <= report["scores"]["accuracy"]
    assert [line.split(":")[0] for line in report["problems"]] == ["leakage"]


def test_answerers_are_compared_question_by_question(answered: Path, result_of, refused, tmp_path: Path) -> None:
    model = openvse.load(answered / "run" / "best")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    model.save(tmp_path / "noisy")
    on = ("--on", f"question_folder:{answered / 'data'}", "--split", "train")
    words = ("compare", answered / "run", tmp_path / "noisy", *on, "--resamples", 100)
    found = result_of(*words, "--html", tmp_path / "page.html")["contrasts"][0]
    assert sum(found["signs"]["questions"][key] for key in ("better", "worse", "equal")) == 18
    assert "accuracy" in (tmp_path / "page.html").read_text()
    assert "--folds" in refused(*words, "--folds", "2")


def test_the_report_shows_figures_and_answers(answered: Path, works, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    works("compare", answered / "run", "--html", out, "--examples", 2)
    page = out.read_text()
    for text in ("most frequent answer", "accuracy (validation)", "what colour is it", "probability"):
        assert text in page, text
    assert page.count("<h2>Best and worst queries</h2>") == 1
