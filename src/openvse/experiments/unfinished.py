"""What a synthetic experiment has found so far, on disk, so that a killed one goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from openvse.experiments.synthetic import Found, Schedule
from openvse.files import write_whole

FILE = "synthetic.unfinished.json"


class Unfinished:
    """The results of an experiment that is not at its end.

    Args:
        folder: of the experiment; it is made.
        schedule: results of another one, or of another seed, are not taken up.
        seed: of the experiment.

    Attributes:
        found: what there is.
    """

    def __init__(self, folder: Path, schedule: Schedule, seed: int) -> None:
        self._path = folder / FILE
        self._told = {"schedule": asdict(schedule), "seed": seed}
        self.found = self._read()
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, found: Found) -> None:
        """Keep one more result."""
        self.found.append(found)
        write_whole(self._path, json.dumps(self._told | {"runs": [asdict(each) for each in self.found]}))

    def finish(self) -> None:
        """Forget the file: the experiment's report holds everything."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> list[Found]:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        same = {key: content.get(key) for key in self._told} == self._told
        return [Found(**run) for run in content["runs"]] if same else []
