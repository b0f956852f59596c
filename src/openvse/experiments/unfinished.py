"""The results of an unfinished synthetic experiment on disk, so that it can continue after a kill."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from openvse.experiments.synthetic import DesignResult, Schedule
from openvse.files import write_whole

FILE = "synthetic.unfinished.json"


class Unfinished:
    """The results of an unfinished experiment.

    Args:
        folder: the folder of the experiment, which is created.
        schedule: the training schedule; results with another schedule or seed are not used.
        seed: the seed of the experiment.

    Attributes:
        results: the results of the finished trainings.
    """

    def __init__(self, folder: Path, schedule: Schedule, seed: int) -> None:
        self._path = folder / FILE
        self._settings = {"schedule": asdict(schedule), "seed": seed}
        self.results = self._read()
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, result: DesignResult) -> None:
        """Add and save a result."""
        self.results.append(result)
        write_whole(
            self._path, json.dumps(self._settings | {"runs": [asdict(each) for each in self.results]})
        )

    def finish(self) -> None:
        """Delete the file, since the report of the experiment holds everything."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> list[DesignResult]:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        same = {key: content.get(key) for key in self._settings} == self._settings
        return [DesignResult(**run) for run in content["runs"]] if same else []
