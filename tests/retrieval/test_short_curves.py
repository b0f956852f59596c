"""The curves of queries of one and of two words, which a validation set gives by the words of its captions."""

from __future__ import annotations

import numpy as np

from openvse.evaluation.calibrate import fit_short
from openvse.scoring.calibration import Calibration, CalibrationData

DATA = CalibrationData("some", 10, 50, 50)


def test_a_curve_holds_for_queries_whose_scores_lie_anywhere() -> None:
    rng = np.random.default_rng(0)
    relevant = rng.random((200, 400)) < 0.08
    drawn = rng.normal(size=relevant.shape) + 2 * relevant
    scores = (rng.normal(size=(200, 1)) + np.exp(rng.normal(size=(200, 1))) * drawn).astype(np.float64)
    curve = fit_short(scores[:100], relevant[:100])
    assert curve.num_queries == 100
    known, seen = [], []
    for row, right in zip(scores[100:], relevant[100:], strict=True):
        whole = Calibration("m", DATA, (0.0,), (0.0,), (1.0,), {"1": curve})
        of_one = whole.of_short(1, float(row.mean()), float(row.std()))
        assert of_one is not None and whole.of_short(2, 0.0, 1.0) is None
        known.append(of_one.probabilities(row, 400, float(right.sum())))
        seen.append(right)
    values, right = np.concatenate(known), np.concatenate(seen)
    for least in (0.0, 0.1, 0.5):
        some = (values >= least) & (values < (0.1 if least == 0 else 0.5 if least < 0.5 else 1))
        assert abs(values[some].mean() - right[some].mean()) < 0.08
    assert Calibration.from_json(whole.to_json()) == whole
