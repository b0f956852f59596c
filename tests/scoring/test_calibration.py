"""The curve as the model keeps it: formulas by hand, its file, and never one of another model."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openvse
from openvse.errors import DataError, ModelError
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.scoring.calibration import CALIBRATION, Calibration, CalibrationData
from openvse.specs.model import TwoTowerSpec
from tests.naming import names, refusal

CURVE = Calibration(
    model="abc",
    data=CalibrationData("drawn", num_images=101, num_texts=10, num_pairs=10),
    scores=(0.0, 0.5, 1.0),
    log_ratios=(np.log(0.1), np.log(100.0), np.log(900.0)),
    relevant_above=(1.0, 0.8, 0.5),
)


def built() -> TwoTower:
    spec = TwoTowerSpec.of(
        {
            "embed_dim": 8,
            "image": {
                "encoder": {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64},
                "aggregator": "mean",
            },
            "text": {"encoder": {"name": "bigru", "word_dim": 4, "min_count": 1}, "aggregator": "mean"},
        }
    )
    return build_model(spec, captions=["a dog"]).eval()


@pytest.fixture(scope="module")
def model() -> TwoTower:
    return built()


def test_posterior_odds_are_the_ratio_times_the_prior_odds() -> None:
    assert CURVE.probabilities(np.array([0.5, 1.0, 2.0])) == pytest.approx([0.5, 0.9, 0.9])
    assert CURVE.probabilities(np.array(1.0), gallery=901) == pytest.approx(0.5)
    assert CURVE.probabilities(np.array(1.0), gallery=1000, expected=100.0) == pytest.approx(100 / 101)
    assert CURVE.probabilities(np.array(0.75)) == pytest.approx(0.75)  # between the knots linear in log odds


def test_more_than_half_of_the_images_are_never_expected() -> None:
    assert CURVE.probabilities(np.array(0.5), gallery=1) == pytest.approx(100 / 101)
    assert CURVE.probabilities(np.array(0.5), gallery=3, expected=50.0) == pytest.approx(100 / 101)


def test_a_threshold_is_the_score_of_a_probability() -> None:
    for wanted in (0.05, 0.5, 0.75, 0.89):
        threshold = CURVE.threshold(wanted)
        assert threshold is not None
        assert CURVE.probabilities(np.array(threshold)) == pytest.approx(wanted)
    assert CURVE.threshold(0.5) == pytest.approx(0.5)
    assert CURVE.threshold(0.91) is None and CURVE.threshold(1.0) is None
    assert CURVE.highest() == pytest.approx(0.9)
    assert CURVE.threshold(1e-9) == 0.0
    assert (CURVE.threshold(0.5, gallery=500) or 0.0) > 0.5
    assert CURVE.recall(0.5) == pytest.approx(0.8)
    assert CURVE.recall(0.75) == pytest.approx(0.65)
    assert CURVE.recall(1.1) == 0.0


@pytest.mark.parametrize("precision", [0.0, 1.1, float("nan")])
def test_an_impossible_precision_is_refused(precision: float) -> None:
    assert names(refusal(DataError, CURVE.threshold, precision), "precision", precision)


@pytest.mark.parametrize("given", [(0, 1.0), (10, 0.0), (10, float("inf"))])
def test_an_impossible_prior_is_refused(given: tuple[int, float]) -> None:
    assert names(refusal(DataError, lambda: CURVE.probabilities(np.array(0.0), *given)), f"{given[0]} ", f"{given[1]} ")


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": (0.0, 1.0)},
        {"scores": (1.0, 0.5, 2.0)},
        {"log_ratios": (0.0, -1.0, 1.0)},
        {"log_ratios": (0.0, float("nan"), 1.0)},
        {"relevant_above": (0.1, 0.2, 0.3)},
        {"data": replace(CURVE.data, num_texts=0)},
    ],
)
def test_knots_that_are_no_curve_are_refused(changes: dict[str, Any]) -> None:
    refusal(DataError, replace, CURVE, **changes)


def test_the_file_lists_thresholds_and_is_read_again() -> None:
    text = CURVE.to_json()
    assert Calibration.from_json(text) == CURVE
    told = json.loads(text)["thresholds"]
    assert told == {f"{p}": pytest.approx(CURVE.threshold(p)) for p in (0.2, 0.5, 0.8, 0.9)} | {"0.95": None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, "openvse-calibration 9.*openvse-calibration 1"),
        ({"scores": "high"}, "openvse evaluate --calibrate"),
        ({"log_ratios": [1, 2]}, "openvse evaluate --calibrate"),
        ({"data": {}}, "openvse evaluate --calibrate"),
        ({"surprise": 1}, "openvse evaluate --calibrate"),
    ],
)
def test_other_files_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Calibration.from_json(json.dumps({**json.loads(CURVE.to_json()), **change}))


@pytest.mark.medium
def test_a_model_folder_keeps_the_curve(model: TwoTower, tmp_path: Path) -> None:
    model.calibration = replace(CURVE, model=model.fingerprint)
    model.save(tmp_path)
    loaded = openvse.load(tmp_path)
    assert isinstance(loaded, TwoTower)
    assert loaded.calibration == model.calibration


@pytest.mark.medium
def test_a_changed_model_loses_the_curve(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changed = built()
    changed.calibration = replace(CURVE, model=changed.fingerprint)
    changed.save(tmp_path)
    next(changed.image.parameters()).data.mul_(2)
    with caplog.at_level(logging.WARNING):
        assert changed.calibration is None
    assert len(caplog.records) == 1
    changed.save(tmp_path)  # over the folder that has one
    assert not (tmp_path / CALIBRATION).exists()


@pytest.mark.medium
def test_a_curve_of_other_weights_in_the_folder_is_not_used(
    model: TwoTower, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model.calibration = None
    model.save(tmp_path)
    # As if weights had been copied over those of another model.
    (tmp_path / CALIBRATION).write_text(CURVE.to_json())
    loaded = openvse.load(tmp_path)
    assert isinstance(loaded, TwoTower) and loaded.calibration is None
    assert "(model abc)" in caplog.text


def test_a_damaged_curve_does_not_keep_a_model_from_loading(
    model: TwoTower, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model.calibration = None
    model.save(tmp_path)
    (tmp_path / CALIBRATION).write_text('{"format": ')
    loaded = openvse.load(tmp_path)
    assert isinstance(loaded, TwoTower) and loaded.calibration is None
    assert "calibration.json" in caplog.text
