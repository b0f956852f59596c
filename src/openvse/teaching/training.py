"""Training beside a teacher, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

from openvse.errors import DataError, OpenVSEError, message_of
from openvse.runtime.model import load_embedder
from openvse.training.checkpoint import BEST

_LOG = "training.log"
_PATIENCE = 10  # of 19, so that searches come first


class TrainingBeside:
    """Trains the recipe ``folder`` from captions, one training at a time.

    The start of the run is the closed form of its own training images. If training makes it better on validation, the
    model is adopted, and otherwise nothing changes.

    Args:
        folder: the folder of the run, and its log. A new run replaces the one before.
        adopt: a function called with a better model, from another thread.
    """

    def __init__(self, folder: Path, adopt: Callable[[object], None]) -> None:
        self._folder, self._adopt = folder, adopt
        self._process: subprocess.Popen[bytes] | None = None
        self._end = ""

    @property
    def is_running(self) -> bool:
        """Whether a training has not ended, or its model is being adopted."""
        return self._process is not None and not self._end

    @property
    def said(self) -> str:
        """What a training says now, or how it ended. Empty without one."""
        with suppress(OSError):
            lines = (self._folder / _LOG).read_text(errors="replace").replace("\r", "\n").split("\n")
            return self._end or next((line.strip() for line in reversed(lines) if line.strip()), "")
        return self._end

    def begin(self, source: Path) -> None:
        """Train from the captions of a folder, or a file.

        Raises:
            DataError: another training has not ended.
        """
        if self.is_running:
            raise DataError("a training is under way: wait until it ends")
        command = [sys.executable, "-m", "openvse", "train", "folder", f"data.source={source}", "--overwrite"]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / _LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--out", str(self._folder / "run")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _PATIENCE)
        self._end = ""
        Thread(target=self._wait, args=(self._process,), name="openvse-training", daemon=True).start()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        try:
            self._end = f"the training failed: {self.said}" if status else self._adopted()
        except (OpenVSEError, OSError, ValueError, KeyError) as error:
            self._end = f"the model that was trained is not used: {message_of(error)}"

    def _adopted(self) -> str:
        """Use a better model, and say what it reached."""
        run = self._folder / "run"
        if not (file := run / "before_after.json").exists():
            return self.said  # why nothing was trained
        record = json.loads(file.read_text())
        before, after = (record["metrics"]["rsum"][side] for side in ("before", "after"))
        figures = f"RSUM on validation was {before:.1f} and is {after:.1f} after training"
        if record["best_epoch"] == 0:
            return f"{figures}: the model stays as it was"
        self._adopt(load_embedder(str(run / BEST)).whole)
        return f"{figures}: the search uses the new model"

    def close(self) -> None:
        """End a training that has not ended."""
        if self.is_running and self._process is not None:
            self._process.terminate()
