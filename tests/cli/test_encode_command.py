"""``openvse encode``: what is printed, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.naming import names


@pytest.mark.medium
def test_what_it_prints(trained: Path, tmp_path: Path, invoke, result_of) -> None:
    model = trained / "run" / "best"
    result = invoke("encode", model, trained / "album", "--out", tmp_path / "x.npy", "--shard-size", 8)
    assert names(result.stdout, tmp_path / "x.npy", 20, 16, 0)
    assert np.load(tmp_path / "x.npy").shape == (20, 16)
    (tmp_path / "s.txt").write_text("a red sky\n\na green field\n")
    (tmp_path / "s.csv").write_text("id,text\n7,a red sky\n8,\n")
    words = ("encode", model, tmp_path / "s.csv", "--out", tmp_path / "s.parquet")
    told = json.loads(invoke(*words, "--json").stdout)
    (failed,) = told["result"].pop("failed")
    assert failed["id"] == "8" and names(told["warnings"][0], 8, 3)
    counts = {"count": 1, "num_embeddings": 1, "dim": 16, "kept": 0, "unreadable": 1}
    assert told["result"] == counts | {"out": str(tmp_path / "s.parquet"), "kind": "texts", "left_out": {}}
    assert result_of(*words)["kept"] == 1


@pytest.mark.medium
def test_what_it_refuses(trained: Path, tmp_path: Path, refused) -> None:
    model = trained / "run" / "best"
    assert names(refused("encode", model, tmp_path / "gone", "--out", tmp_path / "x"), tmp_path / "gone")
    (tmp_path / "x.npy").write_text("mine")
    line = refused("encode", model, trained / "album", "--out", tmp_path / "x.npy")
    assert names(line, tmp_path / "x.npy", "--out", "--overwrite")
    line = refused("encode", model, trained / "album", "--out", tmp_path / "y.npy", "--cluster", "auto")
    assert names(line, "--cluster", "--processes")
