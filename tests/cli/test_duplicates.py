"""``openvse duplicates``: groups of images that are the same or nearly so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from openvse.errors import DataError
from openvse.index.database import Entry, Root
from openvse.index.manifest import Item
from openvse.index.writer import IndexWriter
from openvse.search import find_duplicates


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two photos, one of them three times: as it is, smaller, and once more as it is."""
    photos = tmp_path / "photos"
    (photos / "deeper").mkdir(parents=True)
    for seed in (1, 2):
        noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((320, 240), Image.Resampling.BICUBIC).save(photos / f"{seed}.png")
    Image.open(photos / "1.png").resize((160, 120)).save(photos / "small.jpg", quality=90)
    shutil.copy(photos / "1.png", photos / "deeper" / "copy of 1.png")
    (photos / "broken.png").write_bytes(b"x")
    return photos


@pytest.mark.medium
def test_a_folder(folder: Path, invoke, refused, tmp_path: Path) -> None:
    result = invoke("duplicates", folder)
    assert result.exit_code == 0
    assert result.stdout == (
        f"keep  {folder / '1.png'}\n      {folder / 'deeper' / 'copy of 1.png'}\n      {folder / 'small.jpg'}\n"
        f"{folder}: 1 group, 2 more than the images to keep\n"
    )
    assert "skipped" in result.stderr and "broken.png" in result.stderr
    others = invoke("duplicates", folder, "-0").stdout.split("\0")
    assert others == [str(folder / "deeper" / "copy of 1.png"), str(folder / "small.jpg"), ""]
    (group,) = json.loads(invoke("duplicates", folder, "--json").stdout)["result"]["groups"]
    assert group == {"keep": str(folder / "1.png"), "others": others[:2]}
    assert "a threshold is for an index" in refused("duplicates", folder, "--threshold", 0.9)
    (tmp_path / "empty").mkdir()
    assert "there is no image" in refused("duplicates", tmp_path / "empty")


def test_the_largest_is_kept_though_it_is_decoded_smaller(folder: Path) -> None:
    large = Image.open(folder / "1.png").resize((640, 480), Image.Resampling.BICUBIC)
    large.save(folder / "large.jpg", quality=90)
    ((kept, *_),), _ = find_duplicates(folder)
    assert kept == folder / "large.jpg"


@pytest.mark.medium
def test_what_cannot_be_used_is_named_five_times_and_then_counted(
    folder: Path, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(15):
        (folder / f"z{number:02}.png").write_bytes((folder / "1.png").read_bytes()[: 40 * number])
    told = invoke("duplicates", folder).stderr.splitlines()
    assert sum("skipped" in line and ".png" in line for line in told) == 5
    assert sum("11 more" in line for line in told) == 1
    named = json.loads(invoke("duplicates", folder, "--json").stdout)["warnings"]
    assert sum(".png" in line for line in named) == 16
    monkeypatch.setenv("OPENVSE_MAX_PIXELS", "1")  # so that it is forgotten after this test
    refused = invoke("duplicates", folder, "--json", "--max-pixels", 160 * 120)
    named = json.loads(refused.stdout)["warnings"]
    assert any("2.png" in line and "76800" in line for line in named)
    assert not any("small.jpg" in line for line in named)  # a JPEG of four times as many pixels is read


@pytest.mark.medium
def test_an_index(tmp_path: Path, invoke) -> None:
    angles = np.array([0.0, 0.01, 1.0, 2.0, 2.005, 2.01])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, None].astype(np.float32)
    entries = [Entry(Item(f"{number}.jpg", number, 10 + number)) for number in range(6)]
    with IndexWriter(tmp_path / "index", model="m", roots=[Root(0, "/photos", "")]) as writer:
        writer.append(entries, vectors)
    groups, _ = find_duplicates(tmp_path / "index", 0.9999)
    names = [[path.name for path in group] for group in groups]
    assert names == [["5.jpg", "4.jpg", "3.jpg"], ["1.jpg", "0.jpg"]]
    assert invoke("duplicates", tmp_path / "index").stdout.endswith(
        "2 groups, 3 more than the images to keep\n"
    )
    groups, _ = find_duplicates(tmp_path / "index", float(np.cos(0.006)))  # 3 and 5 are 0.01 apart, both by 4
    names = [[path.name for path in group] for group in groups]
    assert names == [["5.jpg", "4.jpg"]]
    with pytest.raises(DataError, match="is 2"):
        find_duplicates(tmp_path / "index", 2.0)
