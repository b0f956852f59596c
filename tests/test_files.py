"""Files that are whole at every moment, and locks that end with their owner."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from openvse.cli import progress as stopping
from openvse.errors import DiskError, ModelError, StoreError, TrainingError
from openvse.files import (
    LOCK,
    check_same,
    is_free,
    locked,
    made,
    replacing,
    replacing_files,
    settle,
    stops_wait,
    write_whole,
    writing,
)
from tests.naming import names, refusal
from tests.stopped import STOPPED, ends_at


class Stopped(BaseException):
    """Stands for a Ctrl-C."""


def test_a_text_is_written_in_utf_8_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content in ("a long first text", "zwölf 犬", ""):
        write_whole(path, content)
        assert path.read_bytes() == content.encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_the_old_file_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"old")
    with replacing(path) as partial:
        partial.write_bytes(b"ne")
        assert path.read_bytes() == b"old"
        partial.write_bytes(b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError, Stopped])
def test_a_block_that_raises_leaves_the_old_file_alone(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as partial:
        partial.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    code = (
        "import os, signal; from pathlib import Path; from openvse.files import replacing\n"
        f"with replacing(Path({str(path)!r})) as partial:\n"
        "    partial.write_text('a half-written text'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists() and len(list(tmp_path.iterdir())) == 1
    write_whole(path, "whole")
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]


def test_the_file_is_on_the_disk_before_it_takes_the_name(tmp_path: Path, monkeypatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (order.append("disk"), fsync(file)))
    monkeypatch.setattr(Path, "replace", lambda path, to: (order.append("name"), replace(path, to)))
    write_whole(tmp_path / "a.txt", "text")
    assert order == ["disk", "name", "disk"]  # the file, its name, and the name on the disk


def test_a_missing_folder_is_the_callers_fault(tmp_path: Path) -> None:
    refusal(FileNotFoundError, write_whole, tmp_path / "missing" / "a.txt", "text")


def test_a_second_writer_is_refused_in_one_line_until_the_first_ends(tmp_path: Path) -> None:
    with locked(tmp_path, "run", TrainingError):
        told = refusal(StoreError, locked(tmp_path, "feature store", StoreError).__enter__)
        assert names(told, tmp_path, os.getpid())
    with locked(tmp_path, "run", TrainingError):
        assert (tmp_path / LOCK).read_text() == str(os.getpid())


def test_a_system_without_the_locks_of_posix_is_told_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert names(refusal(StoreError, locked(tmp_path, "feature store", StoreError).__enter__), "WSL")
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_block_lets_go(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(Stopped), locked(tmp_path, "run", TrainingError):
            raise Stopped


def test_a_kill_lets_go_although_a_forked_worker_lives_on(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()

    def hold() -> None:
        with locked(tmp_path, "run", TrainingError):
            context.Process(target=time.sleep, args=(5,)).start()  # as a data loader forks a worker
            started.set()
            time.sleep(20)

    process = context.Process(target=hold)
    process.start()
    assert started.wait(20)
    assert names(refusal(TrainingError, locked(tmp_path, "run", TrainingError).__enter__), process.pid)
    process.kill()
    process.join()
    with locked(tmp_path, "run", TrainingError):
        pass


def test_a_lock_whose_owner_is_gone_is_waited_for(tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("w") as held:
        print(2**22 + 1, end="", file=held, flush=True)  # no process of Linux has this number
        fcntl.flock(held, fcntl.LOCK_EX)
        threading.Timer(0.2, fcntl.flock, (held, fcntl.LOCK_UN)).start()
        with locked(tmp_path, "run", TrainingError):
            assert (tmp_path / LOCK).read_text() == str(os.getpid())


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_umask_decides_who_may_read(tmp_path: Path, umask: int, mode: int) -> None:
    """Also where a library, as safetensors does, writes to a private file and renames it."""
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "a.bin") as partial:
            file, private = tempfile.mkstemp(dir=tmp_path)
            os.close(file)
            Path(private).replace(partial)
        with replacing_files(tmp_path / "model", "config") as partial:
            os.close(os.open(partial / "weights", os.O_CREAT, 0o600))
            (partial / "config").write_text("{}")
    finally:
        os.umask(before)
    files = [tmp_path / "a.bin", tmp_path / "model" / "weights", tmp_path / "model" / "config"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [mode] * 3


def content_of(folder: Path) -> dict[str, str]:
    """Return the texts of the files that a program which knows nothing of sets finds in a folder."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path): (folder / path).read_text() for path in found if not path.parts[0].startswith(".")}


OLD = dict.fromkeys(("config", "curve", "mine", "text/more", "text/words", "weights"), "old")
NEW = {"config": "new", "mine": "old", "text/words": "new", "weights": "new", "zebra": "new"}


def written(folder: Path, files: dict[str, str]) -> None:
    """Write files, each in its folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def replace_the_set(folder: Path) -> None:
    with replacing_files(folder, "config", ["curve", "text"]) as partial:
        written(partial, {name: text for name, text in NEW.items() if text == "new"})


def test_files_take_their_places_when_all_are_whole(tmp_path: Path) -> None:
    written(tmp_path / "model", OLD)
    with pytest.raises(Stopped), replacing_files(tmp_path / "model", "config", ["curve"]) as partial:
        (partial / "config").write_text("half")
        raise Stopped
    assert content_of(tmp_path / "model") == OLD
    replace_the_set(tmp_path / "model")
    assert content_of(tmp_path / "model") == NEW
    assert not list((tmp_path / "model").glob(".*"))


def test_a_set_is_the_old_or_the_new_one_wherever_its_writer_is_stopped(tmp_path: Path) -> None:
    """Whoever settles it has all of one; whoever does not finds what names the set only if all of it is there."""
    states: list[str] = []
    while True:
        folder = tmp_path / str(len(states))
        written(folder, OLD)
        code = ends_at(lambda place=folder: replace_the_set(place), folder, len(states))
        unsettled = content_of(folder)
        assert "config" not in unsettled or unsettled in (OLD, NEW)
        of_folder = [text for name, text in unsettled.items() if name.startswith("text/")]
        assert of_folder.count("old") in (0, 2), of_folder  # a folder goes as a whole
        assert settle(folder, "config") is not None
        assert content_of(folder) in (OLD, NEW), len(states)
        states.append(content_of(folder)["config"])
        replace_the_set(folder)
        assert content_of(folder) == NEW
        assert not list(folder.glob(".*"))
        if code != STOPPED:
            break
    assert states == sorted(states, reverse=True)
    assert states.count("old") > 5 < states.count("new")


def test_settling_can_be_stopped_anywhere_too(tmp_path: Path) -> None:
    stops = 0
    for first in range(30):  # the new set has just become the present one
        written(tmp_path / "model", OLD)
        ends_at(lambda: replace_the_set(tmp_path / "model"), tmp_path, first)
        if (tmp_path / "model" / ".config.ready").is_dir():
            break
        shutil.rmtree(tmp_path / "model")
    while True:
        folder = shutil.copytree(tmp_path / "model", tmp_path / str(stops))
        code = ends_at(lambda place=folder: settle(place, "config"), folder, stops)
        settle(folder, "config")
        assert content_of(folder) == NEW, stops
        stops += 1
        if code != STOPPED:
            break
    assert stops > 5


def test_a_set_that_is_replaced_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    written(tmp_path, OLD)
    found = settle(tmp_path, "config")
    check_same(tmp_path, "config", found)
    replace_the_set(tmp_path)
    assert names(refusal(ModelError, check_same, tmp_path, "config", found), tmp_path)


def test_a_folder_is_free_where_only_a_stopped_writer_left_something(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    assert is_free(folder, "config")
    assert ends_at(lambda: replace_the_set(folder), folder, 5) == STOPPED
    assert list(folder.iterdir()) == [folder / ".config.new"]
    assert is_free(folder, "config")
    (folder / "mine").touch()
    assert not is_free(folder, "config")


def test_a_folder_that_nothing_came_of_is_taken_away(tmp_path: Path) -> None:
    with pytest.raises(Stopped), made(tmp_path / "a" / "b"), locked(tmp_path / "a" / "b", "run", TrainingError):
        raise Stopped
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Stopped), made(tmp_path / "a" / "b"):
        (tmp_path / "a" / "mine").write_text("here")
        raise Stopped
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "mine"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "x"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_what_a_full_disk_raises_is_one_line(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(DiskError) as caught, writing(tmp_path):
        try:
            raise error
        finally:
            raise RuntimeError("unexpected position in an archive")
    assert names(str(caught.value), tmp_path, "No space left on device")
    with pytest.raises(DiskError), replacing(tmp_path / "a"):
        raise error
    assert caught.value.strerror == "No space left on device"
    with pytest.raises(ValueError, match="another"), writing(tmp_path):
        raise ValueError("another fault")


def swallow_a_signal(number: int) -> None:
    """Get a signal where any exception is swallowed, as at one line of ``copyreg``."""
    with suppress(BaseException):
        os.kill(os.getpid(), number)
        time.sleep(0.01)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_waits_for_the_end_of_the_block(number: int) -> None:
    reached = []
    with stopping.stoppable():
        handler = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt), stops_wait():
            swallow_a_signal(number)
            reached.append("the end")
        assert reached == ["the end"]
        assert signal.getsignal(number) == handler


def test_a_stop_is_not_lost_when_the_block_fails() -> None:
    with stopping.stoppable(), pytest.raises(stopping.Stopped) as stop, stops_wait():
        swallow_a_signal(signal.SIGTERM)
        raise OSError("the disk is full")
    assert isinstance(stop.value.__context__, OSError)


def test_a_signal_that_nothing_handles_ends_the_process_at_once() -> None:
    program = "from openvse.files import stops_wait\nwith stops_wait(): print('begun', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        process.terminate()
        assert process.wait(timeout=60) == -signal.SIGTERM


def test_a_thread_to_which_no_stop_comes_goes_on() -> None:
    def block() -> str:
        with stops_wait():
            return "done"

    with ThreadPoolExecutor() as pool:
        assert pool.submit(block).result() == "done"
