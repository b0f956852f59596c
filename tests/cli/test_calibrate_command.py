"""Probabilities from the command line: fitted by training and ``evaluate``, shown by both and ``search``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from album import digest, write_album, write_recipe
from click.testing import Result

import openvse
from openvse.model.two_tower import TwoTower
from openvse.scoring.calibration import CALIBRATION, Calibration
from openvse.search.hits import FITS
from tests.naming import names

Invoke = Callable[..., Result]


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """Return a model folder of one's own; that of the shared run keeps no curve, as 4 images are too few."""
    assert not (trained / "run" / "best" / CALIBRATION).exists()
    return Path(shutil.copytree(trained / "run" / "best", tmp_path / "model"))


@pytest.fixture
def calibrated(model: Path, trained: Path, invoke: Invoke) -> Path:
    result = invoke("evaluate", model, "--on", trained / "album", "--split", "all", "--calibrate")
    assert result.exit_code == 0, result.output
    return model


@pytest.mark.medium
def test_calibrate_writes_the_curve_and_nothing_else(model: Path, trained: Path, invoke: Invoke) -> None:
    before = digest(model)
    result = invoke("evaluate", model, "--on", trained / "album", "--split", "all", "--calibrate")
    assert result.exit_code == 0, result.output
    assert "relevant pairs of album" in result.stdout
    assert "| precision | score from | relevant pairs found |" in result.stdout
    assert "leakage: " in result.stderr
    after = digest(model)
    assert after.pop(CALIBRATION)
    assert after == before
    curve = Calibration.from_json((model / CALIBRATION).read_text())
    assert curve.data.name == "album" and curve.data.digest
    shown = invoke(
        "evaluate", model, "--on", trained / "album", "--split", "all", "--calibrate", "--json", "--quiet"
    )
    fields = json.loads(shown.stdout)["result"]["calibration"]
    assert Calibration.from_json(json.dumps(fields)) == curve  # the same every time


@pytest.mark.medium
def test_search_shows_probabilities_and_takes_a_precision(
    calibrated: Path, trained: Path, tmp_path: Path, invoke: Invoke, refused: Callable[..., str]
) -> None:
    index, page = trained / "index", tmp_path / "hits.html"
    result = invoke(
        "search",
        calibrated,
        index,
        "red sky above blue ground",
        "-k",
        2,
        "--only",
        "similarity",
        "--html",
        page,
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split()[2] in FITS
    assert page.read_text().count('class="fit"') == 2
    result = invoke(
        "search", calibrated, index, "red sky above blue ground", "-k", 3, "--json", "--expected", 2
    )
    (asked,) = json.loads(result.stdout)["result"]["queries"]
    first, second, third = (hit["probability"] for hit in asked["hits"])
    assert 1 > first >= second >= third > 0
    result = invoke("search", calibrated, index, "red sky above blue ground", "-k", 3, "--expected", 2)
    assert result.stdout.splitlines()[1].split()[3] == "%"  # who gives a number is told numbers
    result = invoke("search", calibrated, index, "red sky above blue ground", "--min-precision", 0.999)
    assert names(result.stdout, "red sky above blue ground", 0.999)
    assert names(result.stderr, 0.999, 20)
    photo = trained / "album" / "00.png"
    line = refused("search", calibrated, index, photo, "--min-precision", 0.5)
    assert line.startswith("--min-precision takes sentences alone as queries")
    given = (calibrated, index, "red", "--min-precision", 0.5, "--rerank", f"{calibrated},weight=0.5")
    assert "weight is 0.5" in refused("search", *given)
    assert "at most 1" in refused("search", calibrated, index, "red", "--min-precision", 0)


@pytest.mark.medium
def test_a_search_that_ranks_again_takes_the_precision_of_the_last_model(
    calibrated: Path, trained: Path, invoke: Invoke, refused: Callable[..., str]
) -> None:
    index = trained / "index"
    first = (trained / "run" / "best", index, "red sky above blue ground", "-k", 3)
    result = invoke("search", *first, "--rerank", calibrated, "--min-precision", 0.01)
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 4
    assert result.stdout.splitlines()[1].split()[3] == "%"
    without = refused("search", calibrated, *first[1:], "--rerank", first[0], "--min-precision", 0.01)
    assert "which this model does not have" in without


@pytest.mark.medium
def test_a_model_without_a_curve_is_refused_a_precision(
    trained: Path, invoke: Invoke, refused: Callable[..., str]
) -> None:
    best, index = trained / "run" / "best", trained / "index"
    assert "--calibrate" in refused("search", best, index, "red", "--min-precision", 0.5)
    result = invoke("search", best, index, "red sky above blue ground", "-k", 2)
    assert "%" not in result.stdout


@pytest.mark.medium
def test_evaluate_shows_how_far_they_hold(
    calibrated: Path, trained: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--on", trained / "album", "--split", "all", "--out", tmp_path / "report")
    result = invoke("evaluate", calibrated, *given)
    assert result.exit_code == 0, result.output
    assert "## Probabilities\n\nExpected calibration error " in result.stdout
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["reliability"]["gallery"] == 20
    assert (tmp_path / "report" / "reliability.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    result = invoke("evaluate", calibrated, *given[:-1], tmp_path / "again")
    assert result.exit_code == 0, result.output
    assert names(result.stderr, "reliability.png", "matplotlib")
    for models in ([calibrated, calibrated], [trained / "run" / "best"]):
        result = invoke("evaluate", *models, "--on", trained / "album", "--split", "all")
        assert "Probabilities" not in result.stdout


@pytest.mark.medium
def test_what_cannot_be_calibrated_is_refused(
    model: Path, trained: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    on = ("--on", trained / "album", "--split", "validation", "--calibrate")
    few = refused("evaluate", model, *on)
    assert few.startswith("album/validation is too small") and "4 images" in few and few.endswith("20")
    assert "someone/model" in refused("evaluate", "someone/model", *on)
    (tmp_path / "empty").mkdir()
    assert "is not a model folder" in refused("evaluate", tmp_path / "empty", *on)
    assert "--split validation" in refused("evaluate", model, *on[:2], "--calibrate")
    assert "one model" in refused("evaluate", model, model, *on)
    assert "one model" in refused("evaluate", model, *on, "--folds", 2)
    assert not (model / CALIBRATION).exists()


@pytest.mark.slow
def test_training_keeps_the_curve_of_the_best_model(tmp_path: Path, invoke: Invoke) -> None:
    album = write_album(tmp_path / "album", num_images=40)
    lines = [json.loads(line) for line in (album / "metadata.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        line["split"] = "validation" if number < 24 else "train"
    (album / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = tmp_path / "run"
    result = invoke("train", write_recipe(tmp_path / "tiny.yaml", album), "--out", run)
    assert result.exit_code == 0, result.output
    model = openvse.load(run / "best")
    assert isinstance(model, TwoTower) and model.calibration is not None
    curve = model.calibration
    assert (curve.data.name, curve.data.num_images) == ("album/validation", 24)
    again = Path(shutil.copytree(run / "best", tmp_path / "copy"))
    (again / CALIBRATION).unlink()
    result = invoke(
        "evaluate",
        *(again, "--on", album, "--split", "validation", "--features", run / "features", "--calibrate"),
    )
    assert result.exit_code == 0, result.output
    fitted = Calibration.from_json((again / CALIBRATION).read_text())
    assert fitted.data == curve.data
    assert fitted.scores == pytest.approx(curve.scores, abs=1e-5)
