"""``openvse index`` and ``search``: what an index remembers, goes on with, and is not replaced by."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from album import digest, write_album
from test_stopping import start, wait_for

from openvse.errors import IndexFormatError
from openvse.indexing import Index
from openvse.indexing.manifest import find_model
from openvse.model import base
from tests.naming import names, refusal

pytestmark = pytest.mark.medium


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    """A folder with a copy of the trained run, its album and an index of it."""
    for name in ("album", "run"):
        shutil.copytree(trained / name, tmp_path / "mine" / name, copy_function=shutil.copy2)
    return tmp_path / "mine"


@pytest.fixture
def index(place: Path, works) -> Path:
    works("index", place / "run" / "best", place / "album", "--out", place / "index")
    return place / "index"


def test_a_search_needs_the_index_alone(place: Path, index: Path, invoke) -> None:
    result = invoke("search", index, "a red sky", "above", "-k", 2)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == invoke("search", place / "run" / "best", index, "a red sky", "above", "-k", 2).stdout
    # A run's folder stands for its best model, whose curve and features belong to the index, too.
    made = invoke("index", place / "run", place / "album", "--out", place / "run" / "index", "--json")
    assert json.loads(made.stdout)["result"]["stored"] == 20
    assert find_model(place / "run" / "index") == (str(place / "run" / "best"), "")
    again = invoke("index", place / "run", place / "album", "--out", place / "third")
    assert names(again.stderr, place / "run" / "index") and not names(made.stderr, place / "run" / "index")
    found = invoke("search", place / "run", "a red sky", "above", "-k", 2)
    assert (found.stdout, found.stderr) == (result.stdout, "")


def test_the_index_alone_finds_images_by_images(place: Path, index: Path, invoke, refused) -> None:
    best, photo = place / "run" / "best", place / "album" / "03.png"
    for words in ([photo], ["--like", photo], ["a red sky", photo, "--json"]):
        result = invoke("search", index, *words, "-k", 2)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == invoke("search", best, index, *words, "-k", 2).stdout
    words = ("search", index, "a red sky", "-k", 2, "--rerank", best)
    assert invoke(*words).stdout == invoke("search", best, *words[1:]).stdout != ""
    assert "--rerank" in refused("search", index, photo, "--rerank", best)


def test_a_command_reads_what_it_needs_once(place: Path, index: Path, invoke, monkeypatch) -> None:
    """All weights are hashed once; the manifest is read once before the lock is taken and once behind it."""
    done: Counter[str] = Counter()

    def counting(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            done[what] += what != "index.json" or args[0] == index / "index.json"  # and no other file
            return call(*args, **options)

        return counted

    monkeypatch.setattr("openvse.model.base.without_adapters", counting("weights", base.without_adapters))  # for a hash
    monkeypatch.setattr(sqlite3, "connect", counting("database", sqlite3.connect))
    monkeypatch.setattr(Path, "open", counting("index.json", Path.open))
    words = ("index", place / "run" / "best", place / "album", "--out", index)
    assert invoke(*words).stdout == f"{index}: 20 images (20 unchanged, 0 unreadable)\n"
    assert done == {"weights": 1, "database": 1, "index.json": 2}
    done.clear()
    assert invoke(*words, "--check").stdout == f"{index}: 20 images (20 unchanged, 0 unreadable)\n"
    assert done == {"weights": 1, "database": 1, "index.json": 2}
    done.clear()
    assert invoke("search", index, "a red sky", "--where", "kind = image").exit_code == 0
    assert done == {"weights": 1, "database": 1, "index.json": 1}
    done.clear()
    assert invoke("search", index, "a red sky").exit_code == 0
    assert done["weights"] == done["index.json"] == 1
    assert done["database"] <= 2, "once for the items, and once for the titles of the hits"


def test_no_index_is_named(place: Path, index: Path, refused) -> None:
    assert names(refused("search", "gone"), "gone", "openvse index")
    long = "a red sky " * 40
    assert names(refused("search", "gone", long), "gone", long.strip(), "openvse index")


def test_a_check_looks_at_checksums_and_numbers(place: Path, index: Path, refused, invoke, monkeypatch) -> None:
    words = ("index", place / "run" / "best", place / "album", "--out", index, "--check")
    assert invoke(*words).stdout == f"{index}: 20 images (20 unchanged, 0 unreadable)\n"
    monkeypatch.setattr("openvse.indexing.index.SMALL_BYTES", 0)
    monkeypatch.setattr("openvse.indexing.writer.SMALL_BYTES", 0)
    (vectors,) = index.glob("vectors-*")
    stored = np.load(vectors, mmap_mode="r+")
    stored[3] = np.nan
    stored.flush()
    assert names(refusal(IndexFormatError, Index.open, index, check=True), 1, "03.png")
    first, rewritten = invoke(*words).stdout.splitlines()
    assert names(first, index, 20, 1, 19, 1, 0) and names(rewritten, 1)


def test_what_an_index_took_over_is_in_its_json(place: Path, index: Path, invoke) -> None:
    (place / "album" / "logo.svg").touch()
    write_album(place / "more", 3)
    for number in range(3):
        (place / "more" / f"{number:02d}.png").rename(place / "album" / f"new{number}.png")
    words = ("index", place / "run" / "best", place / "album", "--out", index, "--json", "--quiet")
    document = json.loads(invoke(*words).stdout)
    counts = {key: value for key, value in document["result"].items() if isinstance(value, int)}
    assert counts == {
        "images": 23,
        "unchanged": 20,
        "resumed": 0,
        "stored": 0,
        "recognised": 3,  # they look like three of the album
        "described": 0,
        "segments": 0,
        "removed": 0,
        "compacted": 0,
        "unreadable": 0,
    }
    assert document["result"]["left_out"] == {"SVG": [str(place / "album" / "logo.svg")]}
    document = json.loads(invoke(*words[:4], place / "anew", *words[5:]).stdout)
    assert (document["result"]["unchanged"], document["result"]["stored"]) == (0, 20)


def test_index_and_model_move_together(place: Path, index: Path, invoke) -> None:
    before = invoke("search", index, "a red sky", "-k", 2)
    moved = place.rename(place.with_name("moved"))
    result = invoke("search", moved / "index", "a red sky", "-k", 2)
    assert result.exit_code == 0 and result.stdout == before.stdout
    assert names(result.stderr, "warning: ", moved / "index", place / "album", "openvse index")
    assert str(moved) in invoke("index", moved / "run" / "best", moved / "album", "--out", moved / "index").stdout
    assert invoke("search", moved / "index", "a red sky").stderr == ""


def test_the_index_alone_moves(place: Path, index: Path, works) -> None:
    (place / "deeper").mkdir()
    moved = index.rename(place / "deeper" / "index")
    result = works("search", moved, "a red sky")
    assert names(result.stderr, moved, place / "run" / "best")


def test_the_model_is_gone_or_another_one(place: Path, index: Path, refused, invoke) -> None:
    best = place / "run" / "best"
    away = best.rename(place / "away")
    assert names(refused("search", index, "a red sky"), index, best, f"openvse search MODEL {index}", "openvse index")
    assert invoke("search", away, index, "a red sky").exit_code == 0
    shutil.copytree(away, best)
    config = json.loads((best / "config.json").read_text())
    config["model"]["text"]["encoder"]["max_words"] = 50
    (best / "config.json").write_text(json.dumps(config))
    assert names(refused("search", index, "a red sky"), index)


def test_an_index_that_does_not_know_its_model(index: Path, refused, invoke) -> None:
    manifest = index / "index.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"model_place": None}))
    assert names(refused("search", index, "a red sky"), index)
    assert len(Index.open(index, check=True)) == 20


@pytest.mark.parametrize("words", [["index"], ["run/best", "index"]])
def test_no_query(place: Path, index: Path, refused, words: list[str]) -> None:
    assert "--like" in refused("search", *(place / word for word in words))


def test_the_model_folder_says_nothing_of_the_index(place: Path, index: Path) -> None:
    for path in (place / "run" / "best").rglob("*.json"):
        assert "index" not in json.loads(path.read_text()) and str(place) not in path.read_text()


def test_another_folder_asks_for_overwrite(place: Path, index: Path, refused, invoke) -> None:
    before = digest(index)
    other = write_album(place / "other", 12)
    words = ("index", place / "run" / "best", other, "--out", index)
    assert names(refused(*words), index, "--out", "--overwrite")
    assert digest(index) == before
    result = invoke(*words, "--overwrite")
    assert result.stdout == f"{index}: 12 images (12 new, 0 unreadable)\n"


def test_empty_vectors_are_told_and_repaired(place: Path, index: Path, refused, invoke) -> None:
    (vectors,) = index.glob("vectors-*")
    vectors.write_bytes(b"")
    assert names(refused("search", index, "a red sky"), index)
    result = invoke("index", place / "run" / "best", place / "album", "--out", index)
    assert names(result.stdout, index, 20, 20, 20, 0)
    assert len(Index.open(index, check=True)) == 20


@pytest.mark.slow
def test_a_stopped_first_index_goes_on(place: Path, tmp_path: Path, invoke, monkeypatch) -> None:
    album = write_album(tmp_path / "many", 150)
    out = tmp_path / "index"
    words = ("index", place / "run" / "best", album, "--out", out)
    monkeypatch.setattr("openvse.pipeline.KEEP_SECONDS", 0.05)
    process = start(signal.SIG_DFL, tmp_path / "told", *words, "--batch-size", "1")
    wait_for(out / "index.json", process)
    os.kill(process.pid or 0, signal.SIGINT)
    process.join(60)
    told = (tmp_path / "told").read_text()
    assert process.exitcode == 130 and "interrupted" in told, told
    kept = len(Index.open(out, check=True))
    assert names(invoke(*words).stdout, out, 150, 150 - kept, kept)
    assert len(Index.open(out, check=True)) == 150


def test_a_query_bank_is_kept_until_it_is_taken_away(
    place: Path, index: Path, invoke, result_of, works, refused
) -> None:
    words = ("index", place / "run" / "best", place / "album", "--out", index)
    assert result_of(*words)["query_bank"]["source"] == "model"
    invoke(*words, "--query-bank", "none")
    before = invoke("search", index, "a red sky", "above", "--json", "-q").stdout
    (place / "bank.txt").write_text("a red sky\n\nthe sea below\n")
    bank = result_of(*words, "--query-bank", place / "bank.txt")["query_bank"]
    assert (bank["queries"], bank["source"]) == (2, "given")
    works("search", index, "a red sky", "-k", 3)
    album = result_of(*words, "--query-bank", place / "album")["query_bank"]
    assert (album["queries"], album["source"]) == (20, "given")
    assert result_of(*words, "--query-bank", "none")["query_bank"] is None
    assert invoke("search", index, "a red sky", "above", "--json", "-q").stdout == before
    assert "nowhere" in refused(*words, "--query-bank", "nowhere.txt")
    sentences = ("index", place / "run" / "best", place / "bank.txt", "--out", place / "captions")
    assert "sentences" in refused(*sentences, "--query-bank", place / "bank.txt")
