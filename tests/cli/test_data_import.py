"""``openvse data import``: a store, a line that counts, a line for what was skipped."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from openvse.features.store import FeatureStore
from tests.naming import names


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write a table of two images of the album, one that it lacks, and one that is cut off."""
    boxes = base64.b64encode(np.array([[0, 0, 50, 40], [10, 5, 64, 48]], "<f4").tobytes())
    features = base64.b64encode(np.arange(8, dtype="<f4").tobytes())
    lines = [b"\t".join([item, b"64", b"48", b"2", boxes, features]) for item in (b"00", b"01", b"77", b"02")]
    (tmp_path / "regions.tsv").write_bytes(b"\n".join(lines)[:-20])
    return tmp_path / "regions.tsv"


@pytest.mark.medium
def test_import_counts_and_names(table: Path, album: Path, tmp_path: Path, invoke, works) -> None:
    result = works("data", "import", table, tmp_path / "regions", "--match", album, "--made-by", "butd")
    assert names(result.stdout, tmp_path / "regions", 2, 0, 1, 4, "boxes", "'butd'")
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert warnings[0].startswith("warning: skipped regions.tsv, line 4 (02.png): its features ")
    assert names(warnings[1], "warning: 1 ", album, "'77'")
    assert FeatureStore(tmp_path / "regions").ids == ("00.png", "01.png")
    again = invoke("data", "import", table, tmp_path / "regions", "--match", album, "--made-by", "butd")
    assert re.search(r": 0 .* 2 .* 1 .*; ", again.stdout)


@pytest.mark.medium
def test_import_refuses_in_one_line(table: Path, tmp_path: Path, refused) -> None:
    assert names(refused("data", "import", tmp_path / "missing.tsv", tmp_path / "out"), tmp_path / "missing.tsv")
    line = refused("data", "import", table, tmp_path / "out", "--kind", "lmdb")
    assert names(line, "'lmdb'", "hdf5, npy, npz, tsv")
    assert "leave --ids out" in refused("data", "import", table, tmp_path / "out", "--ids", table)
