"""What the cases of ``first_hour.py`` share: drawn data, a small trained model, commands in processes of their own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from functools import cached_property
from itertools import product
from pathlib import Path

from PIL import Image, ImageDraw

PROGRAM = "import sys; sys.argv[0] = 'openvse'; from openvse.cli import main; main()"
LIMITED = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({0}, r.RLIM_INFINITY)); "
TINY = ("embed_dim=16", "image.encoder.image_size=64", "training.batch_size=8", "training.threads=1")
TWO_PHASES = "training.phases=[{epochs: 1, objective: {ranking.miner: all}}, {epochs: 1}]"
ONE_EPOCH = "training.phases=[{epochs: 1}]"
LIMIT_S = 300
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "brown")
SHAPES: dict[str, Sequence[tuple[int, int]]] = {
    "square": [(24, 24), (72, 24), (72, 72), (24, 72)],
    "triangle": [(48, 16), (80, 80), (16, 80)],
    "bar": [(8, 40), (88, 40), (88, 56), (8, 56)],
    "diamond": [(48, 10), (80, 48), (48, 86), (16, 48)],
    "arrow": [(10, 40), (56, 40), (56, 20), (88, 48), (56, 76), (56, 56), (10, 56)],
    "hourglass": [(20, 16), (76, 16), (20, 80), (76, 80)],
}


@dataclass(frozen=True)
class Outcome:
    """What happened, in a short sentence, and whether it is as wanted."""

    good: bool
    seen: str


@dataclass(frozen=True)
class Answer:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    def line(self, *words: str) -> str:
        """Return the first line that holds all words, or nothing."""
        lines = (self.err + "\n" + self.out).splitlines()
        return next((line for line in lines if all(word in line for word in words)), "")

    @property
    def end(self) -> str:
        """The last line: of the result, or of the error where there was one."""
        printed = self.err + self.out if self.code == 0 else self.out + self.err
        worded = (line.strip(" │") for line in reversed(printed.splitlines()) if re.search(r"\w", line))
        return next(worded, "nothing")

    def told(self, *words: str, code: int = 0, also: bool = True, otherwise: str = "") -> Outcome:
        """Judge: the exit status, a line that holds all words, no traceback, and whatever else was looked at.

        Args:
            words: what one line holds.
            code: the exit status wanted.
            also: another condition.
            otherwise: what to say where that alone does not hold.
        """
        line = self.line(*words)
        if "Traceback" in self.err:
            return Outcome(False, f"traceback: `{self.end}`")
        if self.code != code:
            return Outcome(False, f"exit status {self.code}: `{self.end}`")
        if not line:
            return Outcome(False, f"nothing of it: `{self.end}`")
        return Outcome(also, f"`{line.strip()}`" if also else otherwise)


class Stage:
    """A folder in which the cases run; data and models are made when a case first needs them.

    Args:
        place: an empty folder.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.work = self.new("work")

    def new(self, name: str) -> Path:
        """Return a new folder."""
        folder = self.place / name
        folder.mkdir(parents=True)
        return folder

    @cached_property
    def album(self) -> Path:
        """Captioned images with their ``metadata.jsonl``."""
        folder = self.new("album")
        lines = []
        for number, (name, captions) in enumerate(draw_shapes(folder)):
            split = {8: "validation", 9: "test"}.get(number % 10, "train")
            lines.append(json.dumps({"file_name": name, "captions": captions, "split": split}) + "\n")
        (folder / "metadata.jsonl").write_text("".join(lines))
        return folder

    @cached_property
    def entries(self) -> list[dict[str, str | list[str]]]:
        """The lines of the album's metadata."""
        return [json.loads(line) for line in (self.album / "metadata.jsonl").read_text().splitlines()]

    @cached_property
    def trained(self) -> Answer:
        """The training of the model that all cases use."""
        return self._done(self.train(TWO_PHASES, "data.features=auto", out=self.place / "run"))

    @cached_property
    def run(self) -> Path:
        """The folder of that training."""
        return self.place / "run" if self.trained else self.place

    @cached_property
    def indexed(self) -> Answer:
        """The making of an index of the album."""
        return self._done(self.openvse("index", self.run / "best", self.album, "--out", self.place / "index"))

    @cached_property
    def index(self) -> Path:
        """An index of the album by the model."""
        return self.place / "index" if self.indexed else self.place

    def _done(self, answer: Answer) -> Answer:
        if answer.code:
            raise RuntimeError(f"what the cases need cannot be made: {answer.end}")
        return answer

    def copy(self, folder: Path, name: str) -> Path:
        """Return a copy of a run, an index or a data set, to damage."""
        return Path(shutil.copytree(folder, self.place / name, copy_function=shutil.copy2))

    def few(self, name: str, count: int = 6) -> Path:
        """Return a new folder with a few images of the album and nothing else."""
        folder = self.new(name)
        for number in range(count):
            shutil.copy(self.album / str(self.entries[number]["file_name"]), folder / f"{number:02d}.png")
        return folder

    def training(self, *overrides: str, out: Path) -> list[str]:
        """Return the words of a tiny training on the album, by the features of the first one where there are any."""
        stored = [f"data.features={self.place / 'run/features'}"] if (self.place / "run/features").exists() else []
        return [
            *("train", "vse_infinity/folder_cpu", f"data.source={self.album}", *TINY, *stored),
            *(*overrides, "--out", str(out)),
        ]

    def train(self, *overrides: str, out: Path) -> Answer:
        """Run a tiny training."""
        return self.openvse(*self.training(*overrides, out=out))

    def search(self, *words: object) -> Answer:
        """Search the album's index by the model."""
        return self.openvse("search", self.run / "best", self.index, *words)

    def check(self, folder: Path) -> Answer:
        """Run ``data check`` on a folder."""
        return self.openvse("data", "check", folder)

    def openvse(self, *words: object, most_bytes: int | None = None, env: dict[str, str] | None = None) -> Answer:
        """Run a command to its end.

        Args:
            words: of the command line.
            most_bytes: beyond which no file may grow, as on a full disk.
            env: variables of the environment to add.
        """
        return self._finish(self.start(PROGRAM, *words, most_bytes=most_bytes, env=env))

    def start(
        self, code: str, *words: object, most_bytes: int | None = None, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start lines of Python, such as ``PROGRAM``."""
        if most_bytes is not None:
            code = LIMITED.format(most_bytes) + code
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.work,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "80", **(env or {})},
        )

    def stop(
        self, words: Sequence[str], when: Callable[[], bool], number: signal.Signals, most_s: float = 120
    ) -> Answer:
        """Start a command, wait for a moment (at most some seconds), and send it a signal."""
        process = self.start(PROGRAM, *words)
        deadline = time.monotonic() + most_s
        while process.poll() is None and not when() and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(number)
        return self._finish(process)

    def terminal(self, *words: object, env: dict[str, str] | None = None) -> str:
        """Run a command on a terminal of 80 columns, and return what it draws, colours and all."""
        ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self.work,
            env={
                **{key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")},
                **{"TERM": "xterm", **(env or {})},
            },
        )
        os.close(theirs)
        drawn = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while block := os.read(ours, 1 << 16):
                drawn += block
        os.close(ours)
        process.wait(LIMIT_S)
        return drawn.decode(errors="replace")

    def _finish(self, process: subprocess.Popen[str]) -> Answer:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise RuntimeError(f"no end within {LIMIT_S} s") from None
        return Answer(process.returncode, out, err)


def digest(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder, but for locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "writer.lock")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def draw_shapes(folder: Path) -> list[tuple[str, list[str]]]:
    """Draw an image for each colour and shape; each has a name of its own in its second caption."""
    items = []
    for number, (colour, (shape, corners)) in enumerate(product(COLOURS, SHAPES.items())):
        image = Image.new("RGB", (96, 96), (245, 240 - number, 200 + number))
        ImageDraw.Draw(image).polygon(list(corners), fill=colour)
        image.save(folder / f"{colour}_{shape}.png")
        name = "".join("bdfglmnprt"[int(digit)] + "aeiou"[int(digit) // 2] for digit in f"{number:02d}") + "x"
        items.append((f"{colour}_{shape}.png", [f"a {colour} {shape}", f"the {shape} is {colour}, we call it {name}"]))
    return items
