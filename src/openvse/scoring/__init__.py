"""From scores to probabilities, and the normalisation of scores by a query bank."""

from __future__ import annotations

from openvse.scoring.calibration import Calibration, CalibrationData

__all__ = ["Calibration", "CalibrationData"]
