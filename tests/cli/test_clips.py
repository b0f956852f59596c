"""A folder of clips from the shell: trained, evaluated, indexed, searched; bad ones are named."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from album import COLOURS, SPLITS
from PIL import Image

from openvse.features.store import FeatureStore
from tests.naming import names

pytestmark = pytest.mark.medium


def write_clips(folder: Path, num_clips: int = 20) -> Path:
    """Write animations that go from one colour to another, some of a single frame, and their metadata."""
    folder.mkdir(parents=True)
    lines = []
    for number in range(num_clips):
        first, last = np.roll(list(COLOURS), -number)[[0, 1 + number // 4 % 3]]
        count = (1, 4, 12)[number % 3]
        shares = np.linspace(0, 1, count)[:, None]
        colours = (1 - shares) * np.array(COLOURS[first]) + shares * np.array(COLOURS[last])
        frames = [Image.new("RGB", (40, 32), tuple(int(c) for c in colour)) for colour in colours]
        name = f"{number:02d}.{'webp' if number % 2 else 'gif'}"
        frames[0].save(folder / name, save_all=True, append_images=frames[1:], duration=125)
        entry = {"file_name": name, "captions": [f"{first} becomes {last}"], "split": SPLITS[number % 5]}
        lines.append(json.dumps(entry))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def write_recipe(path: Path, source: Path, features: str | None) -> Path:
    backbone = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32}
    tree = {
        "name": "clips",
        "embed_dim": 8,
        "image": {
            "encoder": {"name": "frames", "backbone": backbone, "num_frames": 4, "stored_frames": 6},
            "aggregator": "gpo",
        },
        "text": {"encoder": {"name": "bigru", "word_dim": 8, "min_count": 1}, "aggregator": "gpo"},
        "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": "hinge"}},
        "data": {"source": str(source), "features": features},
        "training": {"batch_size": 8, "threads": 1, "device": "cpu", "phases": [{"epochs": 1}]},
    }
    path.write_text(yaml.safe_dump(tree))
    return path


def test_clips_from_end_to_end(tmp_path: Path, invoke, works) -> None:
    clips = write_clips(tmp_path / "clips")
    (clips / "03.webp").write_bytes((clips / "03.webp").read_bytes()[:-9])
    (clips / "07.webp").write_bytes(b"")
    works("train", write_recipe(tmp_path / "r.yaml", clips, "auto"), "--out", tmp_path / "run")
    best = tmp_path / "run" / "best"
    store = FeatureStore(tmp_path / "run" / "features")
    assert len(store) == 18 and set(store.lengths.tolist()) == {1, 4, 6}
    works("evaluate", best, "--on", clips, "--out", tmp_path / "report")
    assert json.loads((tmp_path / "report" / "report.json").read_text())["metrics"]["i2t_r10"] == 100.0
    indexed = invoke("index", best, clips, "--out", tmp_path / "index")
    assert names(indexed.stdout, 18, 18, 18, 2), indexed.output
    assert names(indexed.stderr, "03.webp", "07.webp")
    page = tmp_path / "hits.html"
    found = invoke("search", best, tmp_path / "index", "red becomes green", "-k", 3, "--html", page)
    assert len(re.findall(r"\.(?:gif|webp)  \(red, green\)$", found.stdout, re.MULTILINE)) == 3
    shown = re.findall(r"data:image/webp;base64,([^\"]+)", page.read_text())
    assert [Image.open(io.BytesIO(base64.b64decode(one))).size for one in shown] == [(40, 32)] * 3


def test_training_reads_clips_without_a_store(tmp_path: Path, works) -> None:
    clips = write_clips(tmp_path / "clips", 10)
    for run in ("one", "two"):
        works("train", write_recipe(tmp_path / "r.yaml", clips, None), "--out", tmp_path / run)
    weights = [(tmp_path / run / "best" / "model.safetensors").read_bytes() for run in ("one", "two")]
    assert weights[0] == weights[1], "the frames that are drawn follow from the seed"


def test_extract_takes_the_options_of_the_backbone(tmp_path: Path, works) -> None:
    clips = write_clips(tmp_path / "clips", 3)
    words = ("backbone.pretrained=false", "backbone.image_size=32", "fps=4", "stored_frames=9")
    works("extract", "frames", clips, tmp_path / "store", *words)
    store = FeatureStore(tmp_path / "store")
    assert store.fingerprint == "frames:efficientnet_lite0:random:32:1x1:4fps:9"
    assert dict(zip(store.ids, store.lengths.tolist(), strict=True)) == {"00.gif": 1, "01.webp": 2, "02.gif": 6}


def test_videos_stand_in_tables_and_folders(tmp_path: Path, invoke) -> None:
    pytest.importorskip("av")
    from clips import write_video

    write_video(tmp_path / "a.mp4", 20)
    write_video(tmp_path / "b.webm", 20, codec="libvpx-vp9")
    write_video(tmp_path / "unlisted.mp4", 5)
    (tmp_path / "t.csv").write_text("video,caption\na.mp4,a dog\nb.webm,a cat\n")
    words = ("backbone.name=efficientnet_lite0", "backbone.pretrained=false", "backbone.image_size=32")
    done = invoke("extract", "frames", tmp_path / "t.csv", tmp_path / "store", *words)
    assert done.exit_code == 0 and "2 new" in done.stdout, done.output
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "a.mp4", "text": "a dog"}\n')
    done = invoke("extract", "frames", tmp_path, tmp_path / "again", *words)
    assert "1 new" in done.stdout
    assert "without a caption (first: b.webm)" in " ".join(done.stderr.split())
