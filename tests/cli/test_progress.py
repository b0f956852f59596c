"""What is said on standard error while something runs."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

import openvse.cli.progress as module
from openvse.cli.progress import Bars, Display, Lines, bar, counted, note, voice, warn
from openvse.errors import OpenVSEError
from openvse.train_cli.launching import TrainingBar
from openvse.training.records import EpochReport, StepReport, Watcher
from tests.naming import names

METRICS = {"rsum": 412.34, "i2t_r1": 40.0, "t2i_r1": 31.26}
SUMMARY = "rsum 412.3 (chance 16.4)  R@1 i2t 40.0 t2i 31.3"


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def terminal(monkeypatch) -> Console:
    """Put a terminal of 80 columns in the place of standard error."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(module, "console", console)
    return console


@pytest.fixture
def quiet() -> Iterator[None]:
    voice.quiet = True
    yield
    voice.quiet = False


def shown(console: Console) -> list[str]:
    """Return the lines of a terminal without their colours and movements."""
    assert isinstance(console.file, io.StringIO)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_nothing_is_said_before_there_is_something_to_say(capsys) -> None:
    with bar() as progress:
        counted(progress, "extracting")
        TrainingBar(progress)
    assert capsys.readouterr() == ("", "")


def test_a_pipe_gets_lines_and_a_terminal_bars(terminal: Console, capsys, monkeypatch) -> None:
    assert isinstance(bar(), Bars)
    assert type(bar(shown=False)) is Display
    monkeypatch.setattr(module, "console", Console(stderr=True))
    assert isinstance(bar(), Lines)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(module, "console", Console(force_terminal=True))
    assert isinstance(bar(), Lines)


def test_lines_come_at_growing_intervals_in_order_with_other_lines(capsys) -> None:
    clock = Clock()
    with Lines(clock) as lines:
        show = counted(lines, "extracting")
        for second in range(601):
            clock.now = 100.0 + second
            show(1000 + second, 2000, 1.0)
            if second == 7:
                warn("a file is damaged")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "extracting: 1,005 of 2,000, 1 images/s, 0:16:35 left"
    assert said[1] == "warning: a file is damaged"
    assert said[2] == "extracting: 1,015 of 2,000, 1 images/s, 0:16:25 left"
    counts = [int(line.split()[1].replace(",", "")) - 1000 for line in said if line.startswith("extracting")]
    gaps = [later - earlier for earlier, later in pairwise(counts[:-1])]
    assert gaps[:5] == [10] * 5 and max(gaps) == 60 and gaps == sorted(gaps)
    assert counts[-1] == 600  # the end is told, too
    assert max(map(len, said)) <= 80


def test_the_end_of_a_piece_of_work_is_said_once(capsys) -> None:
    clock = Clock()
    with Lines(clock) as lines:
        clock.now += 2
        lines.show("embedding", 3, 3)  # a single batch takes time, too
        lines.show("embedding", 3, 3)
        lines.show("embedding", 1, 2)  # another model
        clock.now += 1
        lines.show("embedding", 2, 2)
        lines.show("scoring", 2, 2)  # at once: not worth a line
        lines.show("importing", 7, None, note="3 items/s")
    assert capsys.readouterr().err.splitlines() == [
        "embedding: 3 of 3, took 0:00:02",
        "embedding: 2 of 2, took 0:00:01",
        "importing: 7, 3 items/s",
    ]


def test_bars_are_whole_on_80_columns(terminal: Console) -> None:
    with bar() as progress:
        counted(progress, "extracting features")(1234, 12345, 123.4)
        watcher = TrainingBar(progress)
        watcher.started(total_steps=12345, done_steps=10, num_epochs=24)
        watcher.step(StepReport(12, 5, 6000, {"ranking": 1.25, "mmd": 3.0, "loss": 1234.5678}, 1e-3, 1234.0))
        assert isinstance(progress, Bars)
        progress.progress.refresh()
        watcher.epoch(EpochReport(12, 456.789, METRICS, True, 60.0, SUMMARY))
    lines = shown(terminal)
    assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    extraction = next(line for line in lines if "extracting features" in line)
    assert "1,234 of 12,345" in extraction and "123 images/s" in extraction and "━" in extraction
    training = next(line for line in lines if "6,000 of 12,345" in line)
    assert "epoch 12/24" in training and "loss 1235, 1,234 pairs/s" in training
    assert "epoch  12/24  loss  456.8  rsum 412.3 (chance 16.4)  R@1 i2t 40.0 t2i 31.3  best" in lines


def test_a_wide_terminal_shows_each_term(terminal: Console, monkeypatch) -> None:
    monkeypatch.setattr(module, "console", wide := Console(file=io.StringIO(), force_terminal=True, width=120))
    with bar() as progress:
        watcher = TrainingBar(progress)
        assert isinstance(watcher, Watcher)
        watcher.started(total_steps=20, done_steps=10, num_epochs=2)
        watcher.step(StepReport(2, 10, 20, {"ranking": 1.0, "mmd": 0.5, "loss": 1.5}, 1e-3, 100.0))
    assert "epoch 2/2" in shown(wide)[-1]
    assert "20 of 20" in shown(wide)[-1] and "loss 1.500, 100 pairs/s (ranking 1, mmd 0.5)" in shown(wide)[-1]


def test_training_in_lines(capsys) -> None:
    clock = Clock()
    with Lines(clock) as lines:
        watcher = TrainingBar(lines)
        watcher.started(total_steps=20, done_steps=0, num_epochs=2)
        for step in range(1, 11):
            clock.now += 1
            watcher.step(StepReport(1, step, step, {"loss": 1.25}, 1e-3, 99.7))
        watcher.epoch(EpochReport(1, 1.5, METRICS, False, 60.0, SUMMARY))
        watcher.note("phase 2 of 2 begins")
    assert capsys.readouterr().err.splitlines() == [
        "epoch 1/2: 5 of 20, loss 1.250, 100 pairs/s, 0:00:15 left",
        "epoch   1/2  loss  1.500  rsum 412.3 (chance 16.4)  R@1 i2t 40.0 t2i 31.3",
        "phase 2 of 2 begins",
        "epoch 1/2: 10 of 20, loss 1.250, 100 pairs/s, 0:00:10 left",
    ]


def test_a_warning_is_one_line_and_its_brackets_are_text(capsys) -> None:
    message = "skipped photos/[red]dog[/].jpg: " + "it is not an image we read " * 8
    warn(message)
    assert capsys.readouterr().err == f"warning: {message}\n"


@pytest.mark.parametrize("verbose", [False, True])
def test_what_the_library_logs_is_a_warning_or_a_detail(verbose: bool, tmp_path: Path, invoke, monkeypatch) -> None:
    logger = logging.getLogger("openvse.registry")

    def log(*_: object, **__: object) -> None:
        logger.info("in bf16")
        logger.warning("a word is unknown")
        raise OpenVSEError("enough")

    monkeypatch.setattr("openvse.runtime.model.load_embedder", log)
    said = invoke("index", tmp_path, tmp_path, "--out", tmp_path / "index", *["--verbose"] * verbose).stderr
    assert "warning: a word is unknown" in said and ("in bf16" in said) is verbose


def test_quiet_keeps_warnings_alone(capsys, quiet: None) -> None:
    with bar() as progress:
        counted(progress, "extracting")(2, 2, 1.0)
        TrainingBar(progress).epoch(EpochReport(1, 1.5, METRICS, False, 60.0, SUMMARY))
        note("written: page.html")
        warn("a file is damaged")
    assert capsys.readouterr() == ("", "warning: a file is damaged\n")


def test_no_colour_where_none_is_wanted(terminal: Console, monkeypatch) -> None:
    warn("in colour")
    assert "\x1b[33m" in terminal.file.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(module, "console", plain := Console(file=io.StringIO(), force_terminal=True, width=80))
    warn("plain")
    with bar() as progress:
        counted(progress, "extracting")(1, 2, 1.0)
    assert not re.search(r"\x1b\[(3|4|9)\d", plain.file.getvalue())


@pytest.mark.medium
def test_commands_speak_in_lines_and_are_quiet_when_asked(trained: Path, tmp_path: Path, invoke, monkeypatch) -> None:
    monkeypatch.setattr(module, "WORTH_A_LINE_S", 0.0)
    album, store = trained / "album", tmp_path / "store"
    extract = ("extract", "efficientnet_lite0", album, store, "pretrained=false", "image_size=64")
    evaluate = ("evaluate", trained / "run" / "best", "--on", album)
    index = ("index", trained / "run" / "best", album, "--out", tmp_path / "index")
    check = ("data", "check", f"folder:{album}")
    asked = {
        extract: "extracting: 20 of 20",
        evaluate: "scoring pairs: 32 of 32",
        index: "indexing: 20 of 20",
        check: "decoding images: 20 of 20",
    }
    for words, line in asked.items():
        result = invoke(*words)
        assert line in result.stderr, (words, result.output)
        assert not [said for said in invoke(*words, "--quiet").stderr.splitlines() if " of " in said]


@pytest.mark.medium
def test_json_is_all_that_standard_output_carries(trained: Path, tmp_path: Path, invoke) -> None:
    album, best = trained / "album", trained / "run" / "best"

    def document(*words: object) -> dict:
        found = json.loads(invoke(*words, "--json").stdout)
        assert list(found) == ["schema", "openvse", "command", "warnings", "result"]
        assert found["schema"] == 1 and found["command"] == " ".join(words[: 2 if words[0] == "data" else 1])
        return found

    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "bad.png").write_text("not an image")
    (tmp_path / "mixed" / "logo.svg").write_text("<svg/>")
    (tmp_path / "mixed" / "00.png").write_bytes((album / "00.png").read_bytes())
    indexed = document("index", best, tmp_path / "mixed", "--out", tmp_path / "index")
    result = indexed["result"]
    assert result.keys() == {
        *("index", "images", "unchanged", "resumed", "stored", "recognised", "described", "segments"),
        *("removed", "compacted", "unreadable", "failed", "kept", "left_out", "engine", "text", "query_bank"),
        "towers",
    }
    bad = str(tmp_path / "mixed" / "bad.png")
    assert (result["images"], result["unreadable"], result["failed"][0]["path"]) == (1, 1, bad)
    assert result["left_out"] == {"SVG": [str(tmp_path / "mixed" / "logo.svg")]}
    assert result["engine"] == {"name": "exact", "put": 0, "removed": 0}
    assert result["query_bank"] == {"queries": 20, "source": "model", "reliability": 0.0}
    skipped, left_out = indexed["warnings"]
    assert names(skipped, bad) and names(left_out, 1, "SVG")
    checked = document("data", "check", f"folder:{album}")
    assert checked["result"]["complete"] is True and checked["warnings"] == []
    findings = checked["result"]["findings"]
    assert {finding["mark"] for finding in findings} == {"ok", "note"}
    assert max(len(finding["cases"]) for finding in findings) > 5  # all of them
    evaluated = document("evaluate", best, "--on", album, "--out", tmp_path / "report")["result"]
    assert evaluated["report"] == json.loads((tmp_path / "report" / "report.json").read_text())
    assert (evaluated["task"], evaluated["split"]) == ("retrieval", "test")
