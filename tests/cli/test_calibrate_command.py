"""Probabilities from the command line: fitted by training and ``evaluate``, shown by both and ``search``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from album import digest, write_album, write_recipe

import openvse
from openvse.model.two_tower import TwoTower
from openvse.scoring.calibration import CALIBRATION, Calibration
from openvse.search.hits import FITS
from tests.naming import names

pytestmark = pytest.mark.medium


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """Return a model folder of one's own; that of the shared run keeps no curve, as 4 images are too few."""
    assert not (trained / "run" / "best" / CALIBRATION).exists()
    return Path(shutil.copytree(trained / "run" / "best", tmp_path / "model"))


@pytest.fixture
def calibrated(model: Path, trained: Path, works) -> Path:
    works("evaluate", model, "--on", trained / "album", "--split", "all", "--calibrate")
    return model


def test_calibrate_writes_the_curve_and_nothing_else(model: Path, trained: Path, invoke, works) -> None:
    before = digest(model)
    result = works("evaluate", model, "--on", trained / "album", "--split", "all", "--calibrate")
    assert names(result.stdout, "album", "| precision |") and "leakage: " in result.stderr
    after = digest(model)
    assert after.pop(CALIBRATION)
    assert after == before
    curve = Calibration.from_json((model / CALIBRATION).read_text())
    assert curve.data.name == "album" and curve.data.digest
    shown = invoke("evaluate", model, "--on", trained / "album", "--split", "all", "--calibrate", "--json", "--quiet")
    fields = json.loads(shown.stdout)["result"]["calibration"]
    assert Calibration.from_json(json.dumps(fields)) == curve  # the same every time


def test_search_shows_probabilities_and_takes_a_precision(
    calibrated: Path, trained: Path, tmp_path: Path, invoke, works, result_of, refused
) -> None:
    index, page = trained / "index", tmp_path / "hits.html"
    words = ("search", calibrated, index, "red sky above blue ground")
    result = works(*words, "-k", 2, "--only", "similarity", "--html", page)
    assert result.stdout.splitlines()[1].split()[2] in FITS
    assert page.read_text().count('class="fit"') == 2
    (asked,) = result_of(*words, "-k", 3, "--expected", 2)["queries"]
    first, second, third = (hit["probability"] for hit in asked["hits"])
    assert 1 > first >= second >= third > 0
    result = invoke(*words, "-k", 3, "--expected", 2)
    assert result.stdout.splitlines()[1].split()[3] == "%"  # who gives a number is told numbers
    result = invoke(*words, "--min-precision", 0.999)
    assert names(result.stdout, "red sky above blue ground", 0.999)
    assert names(result.stderr, 0.999, 20)
    photo = trained / "album" / "00.png"
    assert "--min-precision" in refused("search", calibrated, index, photo, "--min-precision", 0.5)
    given = (calibrated, index, "red", "--min-precision", 0.5, "--rerank", f"{calibrated},weight=0.5")
    assert names(refused("search", *given), "weight", 0.5)
    assert names(refused("search", calibrated, index, "red", "--min-precision", 0), 0, 1)


def test_a_search_that_ranks_again_takes_the_precision_of_the_last_model(
    calibrated: Path, trained: Path, works, refused
) -> None:
    index = trained / "index"
    first = (trained / "run" / "best", index, "red sky above blue ground", "-k", 3)
    result = works("search", *first, "--rerank", calibrated, "--min-precision", 0.01)
    assert len(result.stdout.splitlines()) == 4
    assert result.stdout.splitlines()[1].split()[3] == "%"
    refused("search", calibrated, *first[1:], "--rerank", first[0], "--min-precision", 0.01)


def test_a_model_without_a_curve_is_refused_a_precision(trained: Path, invoke, refused) -> None:
    best, index = trained / "run" / "best", trained / "index"
    assert "--calibrate" in refused("search", best, index, "red", "--min-precision", 0.5)
    assert "%" not in invoke("search", best, index, "red sky above blue ground", "-k", 2).stdout


def test_evaluate_shows_how_far_they_hold(
    calibrated: Path, trained: Path, tmp_path: Path, invoke, works, monkeypatch
) -> None:
    given = ("--on", trained / "album", "--split", "all", "--out", tmp_path / "report")
    result = works("evaluate", calibrated, *given)
    assert "## Probabilities\n" in result.stdout
    assert json.loads((tmp_path / "report" / "report.json").read_text())["reliability"]["gallery"] == 20
    assert (tmp_path / "report" / "reliability.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    result = works("evaluate", calibrated, *given[:-1], tmp_path / "again")
    assert names(result.stderr, "reliability.png", "matplotlib")
    for models in ([calibrated, calibrated], [trained / "run" / "best"]):
        result = invoke("evaluate", *models, "--on", trained / "album", "--split", "all")
        assert "Probabilities" not in result.stdout


def test_what_cannot_be_calibrated_is_refused(model: Path, trained: Path, tmp_path: Path, refused) -> None:
    on = ("--on", trained / "album", "--split", "validation", "--calibrate")
    (tmp_path / "empty").mkdir()
    for words, named in (
        ((model, *on), ["album/validation", 4, 20]),
        (("someone/model", *on), ["someone/model"]),
        ((tmp_path / "empty", *on), [tmp_path / "empty"]),
        ((model, *on[:2], "--calibrate"), ["--split validation"]),
        ((model, model, *on), ["--calibrate"]),
        ((model, *on, "--folds", 2), ["--calibrate"]),
    ):
        assert names(refused("evaluate", *words), *named), words
    assert not (model / CALIBRATION).exists()


@pytest.mark.slow
def test_training_keeps_the_curve_of_the_best_model(tmp_path: Path, works) -> None:
    album = write_album(tmp_path / "album", num_images=40)
    lines = [json.loads(line) for line in (album / "metadata.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        line["split"] = "validation" if number < 24 else "train"
    (album / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = tmp_path / "run"
    works("train", write_recipe(tmp_path / "tiny.yaml", album), "--out", run)
    model = openvse.load(run / "best")
    assert isinstance(model, TwoTower) and model.calibration is not None
    curve = model.calibration
    assert (curve.data.name, curve.data.num_images) == ("album/validation", 24)
    again = Path(shutil.copytree(run / "best", tmp_path / "copy"))
    (again / CALIBRATION).unlink()
    works("evaluate", *(again, "--on", album, "--split", "validation", "--features", run / "features", "--calibrate"))
    fitted = Calibration.from_json((again / CALIBRATION).read_text())
    assert fitted.data == curve.data
    assert fitted.scores == pytest.approx(curve.scores, abs=1e-5)
