"""OpenMoji: some 1,900 drawn emoji with several texts each, the data set of the demo."""

from __future__ import annotations

from openvse.datasets.openmoji.openmoji import open_openmoji

__all__ = ["open_openmoji"]
