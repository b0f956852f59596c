"""``openvse index --engine`` and ``search --engine``."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from openvse.indexing.manifest import read_manifest
from tests.naming import names


@pytest.mark.medium
def test_an_index_has_an_engine_and_remembers_it(trained: Path, tmp_path: Path, invoke, works, refused) -> None:
    model, album, out = trained / "run" / "best", tmp_path / "album", tmp_path / "index"
    shutil.copytree(trained / "album", album, copy_function=shutil.copy2)
    result = works("index", model, album, "--out", out, "--engine", "int8", "--check")
    assert result.stdout.splitlines()[1:2] == ["engine int8: 20 items put, 0 removed"]
    asked = ("search", out, "a red sky", "above", album / "03.png", "-k", 4)
    found = invoke(*asked)
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout == invoke(*asked, "--engine", "exact").stdout != ""
    assert names(refused(*asked, "--engine", "qdrant"), "int8", "qdrant")

    (album / "03.png").unlink()
    result = invoke("index", model, album, "--out", out, "--json")
    assert json.loads(result.stdout)["result"]["engine"] == {"name": "int8", "put": 0, "removed": 1}

    # Everything is embedded anew for another folder: the engine stays, its data go.
    place = read_manifest(out).engine["place"]
    shutil.copytree(album, tmp_path / "other", copy_function=shutil.copy2)
    result = invoke("index", model, tmp_path / "other", "--out", out, "--overwrite")
    assert re.search(r"int8: 19 .* 0 ", result.stdout)
    assert not (out / place).exists()
    result = invoke("index", model, tmp_path / "other", "--out", out, "--engine", "exact")
    assert (result.exit_code, read_manifest(out).engine) == (0, None)
    assert not list(out.glob("openvse_*"))


@pytest.mark.medium
def test_an_engine_that_cannot_be_is_refused_before_anything_is_embedded(
    trained: Path, tmp_path: Path, refused
) -> None:
    words = ("index", trained / "run" / "best", trained / "album", "--out", tmp_path / "index")
    assert names(refused(*words, "--engine", "pgvector"), "pgvector", "URL")
    assert "http://127.0.0.1:1" in refused(*words, "--engine", "http://127.0.0.1:1")
    assert not (tmp_path / "index").exists()
