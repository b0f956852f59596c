"""Several processes on one index: one writes at a time, and the next one goes on from what a killed one leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from openvse.search import Index
from tests.conftest import draw_photo
from tests.serving.conftest import make_model, wait_for

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PICTURES = 24

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a model and pictures."""
    (tmp_path / "photos").mkdir()
    make_model(0).save(tmp_path / "model")
    for number in range(PICTURES):
        draw_photo(number).save(tmp_path / "photos" / f"{number:02d}.jpg")
    return tmp_path


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Return a function that starts a command in the folder; it ends with the test."""
    begun: list[subprocess.Popen[str]] = []
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OPENVSE_TOWERS": "none", "OMP_NUM_THREADS": "1"}

    def begin(*words: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "openvse", *words]
        begun.append(subprocess.Popen(program, cwd=home, env=environment, stderr=subprocess.PIPE, text=True))
        return begun[-1]

    yield begin
    for each in begun:
        with suppress(ProcessLookupError):
            each.kill()
        each.communicate()


INDEX = ("index", "model", "photos", "--out", "index", "--batch-size", "2")


def names(home: Path) -> set[str]:
    return {*Index.open(home / "index", check=True).table.ids}


def test_of_two_that_index_at_once_one_is_refused_or_both_are_done(home: Path, start: Start) -> None:
    both = [start(*INDEX) for _ in range(2)]
    told = [each.communicate(timeout=120)[1] for each in both]
    codes = [each.returncode for each in both]
    assert 0 in codes and {*codes} <= {0, 2} and not any("Traceback" in each for each in told)
    assert names(home) == {f"{number:02d}.jpg" for number in range(PICTURES)}
    assert start(*INDEX).wait(120) == 0


def test_a_server_that_watches_and_an_index_that_is_killed_beside_it(home: Path, start: Start) -> None:
    """The server goes on by itself, and its end in an update leaves an index that the same command completes."""
    assert start(*INDEX).wait(120) == 0
    server = start("serve", "index", "--watch", "--port", "0")
    assert server.stderr is not None
    url = next(word for line in server.stderr for word in line.split() if word.startswith("http"))
    url = url.rstrip("/").replace("localhost", "127.0.0.1")

    def items() -> int:
        with suppress(httpx.TransportError):
            return int(httpx.get(f"{url}/api/info").json()["items"])
        return 0

    wait_for(lambda: items() == PICTURES)
    for turn in range(2):
        draw_photo(100 + turn).save(home / "photos" / f"new{turn}.jpg")
        beside = start(*INDEX)
        time.sleep(0.5 * turn)
        beside.send_signal(signal.SIGKILL)
        wait_for(lambda added=turn: items() == PICTURES + added + 1)  # type: ignore[misc]
    assert httpx.get(f"{url}/api/search?q=grass").status_code == 200
    draw_photo(200).save(home / "photos" / "last.jpg")
    time.sleep(0.4)  # it begins to update after 0.3 seconds
    server.send_signal(signal.SIGKILL)
    server.wait(20)
    assert names(home) >= {f"{number:02d}.jpg" for number in range(PICTURES)}
    assert start(*INDEX).wait(120) == 0
    assert names(home) == {each.name for each in (home / "photos").glob("*.jpg")}
