"""``studies/photo_clips.py`` makes clips whose captions name the order, and a control without order."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image, ImageSequence

from openvse.datasets import open_corpus

SCRIPT = Path(__file__).parents[2] / "studies" / "photo_clips.py"
SPLITS = ["train"] * 4 + ["validation"] * 2 + ["test"] * 2


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("photo_clips", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def photos(make_photos: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    rows = []
    for number, (path, split) in enumerate(zip(make_photos(8), SPLITS, strict=True)):
        path.rename(folder / path.name)
        rows.append({"file_name": path.name, "captions": [f"Photo {number} ."], "split": split})
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def frames(path: Path) -> list[bytes]:
    with Image.open(path) as clip:
        return [frame.convert("RGB").tobytes() for frame in ImageSequence.Iterator(clip)]


@pytest.mark.medium
def test_clips_name_the_order_of_two_photos(photos: Path, tmp_path: Path, capsys: Any) -> None:
    make, out = script(), tmp_path / "clips"
    make.main([str(photos), "--out", str(out), "--count", "4"])
    assert "8 clips" in capsys.readouterr().out
    rows = [json.loads(line) for line in (out / "metadata.jsonl").read_text().splitlines()]
    assert [row["split"] for row in rows] == ["train"] * 4 + ["validation"] * 2 + ["test"] * 2
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        first, second = one["captions"][0].split(", then ")
        assert other["captions"] == [f"{second}, then {first}"]
        there, back = frames(out / one["file_name"]), frames(out / other["file_name"])
        # WebP joins frames that are equal, which a short pan has.
        assert 8 <= len(there) <= 16 and 8 <= len(back) <= 16 and there != back
    assert len(open_corpus(out).split("train")) == 4
    with pytest.raises(SystemExit):
        make.main([str(photos), "--out", str(out)])  # it is not empty
    with pytest.raises(SystemExit, match="--count"):
        make.main([str(photos), "--out", str(tmp_path / "more"), "--count", "400"])


@pytest.mark.medium
def test_the_control_has_the_same_frames_in_another_order(photos: Path) -> None:
    make, corpus = script(), open_corpus(photos).split("test")
    kept = {}
    for shuffled in (False, True):
        out = photos.parent / f"clips_{shuffled}"
        (row, _) = make.write_split(corpus, "test", 1, out, seed=0, shuffled=shuffled)
        kept[shuffled] = frames(out / row["file_name"])
    assert len(kept[True]) >= 8 and kept[True] != kept[False]
