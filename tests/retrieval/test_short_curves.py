"""The curves of queries of one and of two words, which a validation set gives by the words of its captions."""

from __future__ import annotations

import numpy as np

from openvse.evaluation.calibrate import fit_short
from openvse.scoring.calibration import Calibration, CalibrationData

DATA = CalibrationData("some", 10, 50, 50)


def test_a_curve_holds_for_queries_whose_scores_lie_anywhere() -> None:
    rng = np.random.default_rng(0)
    relevant = rng.random((200, 400)) < 0.08
    some = relevant | (
        rng.random(relevant.shape) < 0.2
    )  # as images with one of two words, whose scores are higher
    drawn = rng.normal(size=relevant.shape) + relevant + some
    scores = (rng.normal(size=(200, 1)) + np.exp(rng.normal(size=(200, 1))) * drawn).astype(np.float64)
    for among in (np.ones_like(some), some):
        curve = fit_short(scores[:100], relevant[:100], (among & ~relevant)[:100])
        assert curve.num_queries == 100
        known, seen = [], []
        for row, right, counted in zip(scores[100:], relevant[100:], among[100:], strict=True):
            whole = Calibration("m", DATA, (0.0,), (0.0,), (1.0,), {"1": curve})
            of_one = whole.of_short("1", float(row.mean()), float(row.std()))
            assert of_one is not None and whole.of_short("2", 0.0, 1.0) is None
            known.append(of_one.probabilities(row[counted], int(counted.sum()), float(right.sum())))
            seen.append(right[counted])
        values, right = np.concatenate(known), np.concatenate(seen)
        for least, most in ((0.0, 0.1), (0.1, 0.5), (0.5, 1.0)):
            within = (values >= least) & (values < most)
            assert not within.any() or abs(values[within].mean() - right[within].mean()) < 0.08
        assert abs(values.mean() - right.mean()) < 0.02
        assert Calibration.from_json(whole.to_json()) == whole
