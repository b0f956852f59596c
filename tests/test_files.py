"""Files that are whole at every moment, and locks that end with their owner."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openvse.errors import StoreError, TrainingError
from openvse.files import LOCK, locked, replacing, write_whole


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
    assert order == ["disk", "name"]


def test_a_missing_folder_is_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "missing" / "a.txt", "text")


def test_a_second_writer_is_refused_in_one_line_until_the_first_ends(tmp_path: Path) -> None:
    with locked(tmp_path, "run", TrainingError):
        with pytest.raises(StoreError) as error, locked(tmp_path, "feature store", StoreError):
            pass
        assert str(error.value) == (
            f"feature store {tmp_path} is being written by process {os.getpid()}: "
            f"wait for its end, or stop it"
        )
    with locked(tmp_path, "run", TrainingError):
        assert (tmp_path / LOCK).read_text() == str(os.getpid())


def test_an_error_in_the_block_lets_go(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(Stopped), locked(tmp_path, "run", TrainingError):
            raise Stopped


def _hold(folder: Path, started: object) -> None:
    with locked(folder, "run", TrainingError):
        # A worker of a data loader, forked while the lock is held; it outlives its parent here.
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(5,)).start()
        started.set()
        time.sleep(20)


def test_a_kill_lets_go_although_a_forked_worker_lives_on(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    process = context.Process(target=_hold, args=(tmp_path, started))
    process.start()
    assert started.wait(20)
    with (
        pytest.raises(TrainingError, match=f"by process {process.pid}"),
        locked(tmp_path, "run", TrainingError),
    ):
        pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with locked(tmp_path, "run", TrainingError):
        pass
