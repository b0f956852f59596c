"""Commands of openvse in forked children of one process, on a disk that fails at a chosen change (``stops.c``)."""

from __future__ import annotations

import ctypes
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

FAULTS = {"end": 1, "torn": 2, "full": 3, "broken": 4}
"""The process ends; it ends in the middle of a write; the disk is full; it refuses once."""

ENDED = 137
_SECONDS = 240  # a child that hangs is ended


class NoCompilerError(Exception):
    """There is no gcc, or it cannot build the library."""


def built(folder: Path) -> Path:
    """Build the library that makes the disk fail."""
    source, library = Path(__file__).with_name("stops.c"), folder / "stops.so"
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        raise NoCompilerError("stopping at each call of the system needs Linux and gcc (Debian: apt install gcc)")
    folder.mkdir(parents=True, exist_ok=True)
    words = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCompilerError(f"{compiler} cannot build {source.name}: {done.stderr.strip()[-300:]}")
    return library


@dataclass(frozen=True)
class Call:
    """A change of the disk.

    Attributes:
        path: below the watched folder.
        other: where a file was before a rename or link.
        offset: where a write goes, or the size to which a file is cut.
    """

    number: int
    name: str
    path: str
    other: str = ""
    offset: int = 0
    content: bytes = b""

    @property
    def needs_room(self) -> bool:
        """Whether a full disk refuses it."""
        return self.name in ("write", "create", "mkdir", "symlink", "reserve")


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The last line of its errors."""
        return (self.err.strip().splitlines() or [""])[-1]

    @property
    def is_bug(self) -> bool:
        """Whether it ended by a traceback or a signal."""
        return "Traceback (most recent call last)" in self.err or self.code < 0


def forked(work: Callable[[], object], log: Path) -> Ended:
    """Run a function in a child process, and return how it ended."""
    out, err = log.with_suffix(".out"), log.with_suffix(".err")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
            signal.alarm(_SECONDS)
            work()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
            _rest()
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ended(status, out.read_text(errors="replace"), err.read_text(errors="replace"))


def _rest() -> None:
    with suppress(AttributeError):
        ctypes.CDLL(None).disk_rest()


def command(words: Sequence[object]) -> None:
    """Run a command line in this process; every batch is kept, and not what five seconds made."""
    import openvse.pipeline
    from openvse.cli.app import app

    openvse.pipeline.KEEP_SECONDS = -1.0
    sys.argv = ["openvse", *map(str, words)]
    app([str(word) for word in words], prog_name="openvse")


def printed(*words: object) -> Any:
    """Return the result that a command prints as JSON; it ends this process where it fails."""
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            command([*words, "--json"])
    except SystemExit as stop:
        if stop.code:
            raise
    return json.loads(text.getvalue())["result"]


@dataclass(frozen=True, eq=False)
class Case:
    """A command, the state that it begins with, and what a later command must find.

    Attributes:
        command: the name of the command, as the table of docs/recovery.md has it.
        words: the command line, whose state is the folder ``state`` of its home.
        look: what a later command finds in the state; it runs in a child, and may raise what openvse raises.
        prepare: makes the state.
        between: returns what is wrong with a state that is neither the one before nor the one after; None where there
            must be no such state.
        again: the command that a user gives after a stop; None for the same one.
        work: what a command does that would go on, in place of it.
        most: the largest number of tries of each fault.
    """

    name: str
    command: str
    words: Callable[[Path], Sequence[object]]
    look: Callable[[Path], Any]
    prepare: Callable[[Path], None] = lambda home: None
    between: Callable[[Any, Any, Any], str] | None = None
    again: Callable[[Path], Sequence[object]] | None = None
    env: dict[str, str] = field(default_factory=dict)
    most: int = 1000
    work: Callable[[Path], None] | None = None

    def run(self, home: Path, words: Callable[[Path], Sequence[object]]) -> None:
        """Run the command by some words, or what it does."""
        command(words(home)) if self.work is None else self.work(home)


class Trial:
    """One case in a folder of its own, and its states before and after an undisturbed run."""

    def __init__(self, case: Case, home: Path) -> None:
        self.case, self.home, self.state, self.log = case, home, home / "state", home / "log"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        done = forked(lambda: self._with_environment(lambda: case.prepare(home)), self.log)
        if done.code:
            raise RuntimeError(f"{case.name} cannot be prepared: {done}")
        self._copy(self.state, home / "before")
        self._import_what_it_needs()
        self.put_back()
        self.before = self.found()
        self.put_back()
        done = self.run(log=home / "calls")
        if done.code:
            raise RuntimeError(f"{case.name} does not work undisturbed: {done}")
        self.calls = read_calls(home / "calls", self.state)
        self.after, self.files = self.found(), self._names()
        if isinstance(self.after, dict) and "error" in self.after:
            raise RuntimeError(f"{case.name}: {self.after}")

    def put_back(self) -> None:
        """Make the state what it was before."""
        self._copy(self.home / "before", self.state)

    def run(self, fault: str = "", number: int = 0, log: Path | None = None, *, again: bool = False) -> Ended:
        """Run the command, or the one that is given after a stop, with a fault at a call."""
        words = self.case.again if again and self.case.again else self.case.words

        def work() -> None:
            if not again:
                given = str(self.state).encode(), ctypes.c_long(number), FAULTS.get(fault, 0)
                ctypes.CDLL(None).disk_watch(*given, str(log or "").encode())
            self.case.run(self.home, words)

        return forked(lambda: self._with_environment(work), self.log)

    def found(self) -> Any:
        """Return what a later command finds."""
        answer = self.log.with_suffix(".json")
        answer.unlink(missing_ok=True)

        def work() -> None:
            from openvse.errors import OpenVSEError

            try:
                answer.write_text(json.dumps(self.case.look(self.state)))
            except OpenVSEError as error:
                print(f"openvse: error: {error}", file=sys.stderr)
                sys.exit(2)

        done = forked(lambda: self._with_environment(work), self.log)
        return {"error": done.line, "bug": done.is_bug} if done.code else json.loads(answer.read_text())

    def chosen(self, fault: str, most: int, seed: int) -> list[int]:
        """Return the calls at which a fault can differ; where these are too many, a sample of them."""
        calls = [
            call for before, call in zip([None, *self.calls], self.calls, strict=False) if _differs(fault, before, call)
        ]
        most = min(most, self.case.most)
        if len(calls) > most:  # a database and a checkpoint take many writes, all of one kind
            kinds: dict[tuple[str, str], list[Call]] = {}
            for call in calls:
                kinds.setdefault((call.name, _without_random(call.path)), []).append(call)
            drawn = random.Random(f"{seed} {self.case.name} {fault}")
            order = [drawn.sample(each, len(each)) for each in kinds.values()]
            drawn.shuffle(order)
            turns = [each[turn] for turn in range(max(map(len, order))) for each in order if turn < len(each)]
            calls = turns[:most]
        return sorted(call.number for call in calls)

    def attempt(self, fault: str, number: int) -> dict[str, Any]:
        """Try one fault at one call, and return what was found and all that is wrong."""
        self.put_back()
        done = self.run(fault, number)
        call = self.calls[number - 1] if number <= len(self.calls) else None
        row: dict[str, Any] = {"case": self.case.name, "command": self.case.command, "fault": fault, "call": number}
        row |= {
            "of": len(self.calls),
            "what": call and f"{call.name} {call.path}",
            "line": done.line,
            "code": done.code,
        }
        wrong = _wrong_end(done) if fault in ("full", "broken") else []
        return row | self.judged(wrong, is_done=fault in ("full", "broken") and done.code == 0)

    def judged(self, wrong: list[str], *, is_done: bool = False) -> dict[str, Any]:
        """Compare what a later command finds, and finds after the same command, with what it must find."""
        found = self.found()
        kind = self._kind(found, wrong, is_done=is_done)
        done = self.run(again=True)
        refusals = (" already there", " already holds ", " exists: ")
        is_there = kind == "after" and any(each in done.line for each in refusals)
        if done.code and not is_there:
            wrong.append(f"the same command again ends with {done.code}: {done.line[:300]}")
        if not close(self.after, found := self.found()):
            wrong.append(f"after the same command: {differences(self.after, found)[:3]}")
        if litter := sorted({*self._names()} - {*self.files}):
            wrong.append(f"left for ever: {litter[:5]}")
        return {"found": kind, "wrong": wrong}

    def _kind(self, found: Any, wrong: list[str], *, is_done: bool) -> str:
        if isinstance(found, dict) and found.get("bug"):
            wrong.append(f"a later command: {found['error']}")
            return "bug"
        for name, state in (("after", self.after), ("before", self.before)):
            both = [each for each in (found, state) if isinstance(each, dict) and "error" in each]
            if close(found, state) or len(both) == 2:
                if is_done and name == "before" and not close(self.before, self.after):
                    wrong.append("it ended with 0, and nothing has changed")
                return name
        between = self.case.between
        if is_done:
            wrong.append(f"it ended with 0: {differences(self.after, found)[:3]}")
        elif between is None:
            wrong.append(f"neither before nor after: {differences(self.before, found)[:2]}")
        elif why := between(self.before, self.after, found):
            wrong.append(f"between: {why}")
        return "between"

    def _names(self) -> list[str]:
        """Return the files of the state, without the random parts of their names."""
        return [_without_random(str(path.relative_to(self.state))) for path in self.state.rglob("*")]

    def _with_environment(self, work: Callable[[], object]) -> None:
        os.environ.update(self.case.env)
        work()

    def _copy(self, source: Path, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        if source.exists():
            shutil.copytree(source, target, symlinks=True)

    def _import_what_it_needs(self) -> None:
        """Import here what the command imports, so that no try has to."""
        names = self.log.with_suffix(".modules")

        def work() -> None:
            try:
                self.case.run(self.home, self.case.words)
            finally:
                names.write_text("\n".join(sys.modules))

        forked(lambda: self._with_environment(work), self.log)
        for name in names.read_text().split("\n"):
            if name not in sys.modules and name.split(".")[0] not in ("__main__", "onnx_ir"):
                with suppress(BaseException):
                    importlib.import_module(name)


def read_calls(path: Path, watched: Path) -> list[Call]:
    """Read the log of the library."""
    content, place, calls = path.read_bytes(), 0, []
    while place < len(content):
        end = content.index(b"\n", place)
        number, name, length, offset, where, other = content[place:end].decode(errors="surrogateescape").split("\t")
        place = end + 1 + int(length)
        bytes_ = content[end + 1 : place]
        where, other = (os.path.relpath(each, watched) if each else "" for each in (where, other))
        calls.append(Call(int(number), name, where, other, int(offset), bytes_))
    return _with_hidden_renames(calls)


def _with_hidden_renames(calls: list[Call]) -> list[Call]:
    """Give files of safetensors their last names: it renames by a call of its own, which nothing sees."""
    made = {call.path for call in calls if call.name in ("create", "mkdir")}
    made |= {call.path for call in calls if call.name in ("rename", "link")}
    names: dict[str, str] = {}
    for call in calls:
        path = Path(call.path)
        if call.name == "create" and path.name.startswith(".tmp"):
            names[call.path] = call.path
        elif call.name == "sync" and call.path not in made and path.suffix:
            for temporary in [
                each for each, last in names.items() if each == last and Path(each).parent == path.parent
            ]:
                names[temporary] = call.path
    return [replace(call, path=names.get(call.path, call.path)) for call in calls]


def _differs(fault: str, before: Call | None, call: Call) -> bool:
    if fault == "end":
        return before is None or before.name != "sync"
    if fault == "torn":
        return call.name == "write" and len(call.content) > 1
    return call.needs_room if fault == "full" else True


def _wrong_end(done: Ended) -> list[str]:
    if done.is_bug:
        return [f"a bug: {done.line[:300]}"]
    if done.code and not done.line.startswith("openvse: error: "):
        return [f"no error of one line: {done.line[:300]}"]
    return []


def _without_random(name: str) -> str:
    name = re.sub(r"events\.out\.tfevents.*", "events", name)
    return re.sub(r"(?<=[-_])[0-9a-f]{8,32}|(?<=-)\d+(?=\.(i8|f32|i64))|\.tmp\w+", "*", name)


def close(one: Any, other: Any) -> bool:
    """Compare JSON values, numbers with a tolerance."""
    if isinstance(one, float | int) and isinstance(other, float | int) and not isinstance(one, bool):
        return abs(one - other) <= 2e-4 * max(1.0, abs(one))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return bool(one == other)


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Return where two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other})
        return [each for key in keys for each in differences(one.get(key), other.get(key), f"{path}.{key}")]
    return [] if close(one, other) else [f"{path}: {str(other)[:120]} instead of {str(one)[:120]}"]
