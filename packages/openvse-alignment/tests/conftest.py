"""Twenty images in a folder with their captions, in the published layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Write the folder: images 0, 1, 2, 5, 6, ... are for training. Images 5 and 6 share a caption."""
    folder = tmp_path / "album"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (20, 40, 40, 3), dtype=np.uint8)
    entries = []
    for place, each in enumerate(pixels):
        Image.fromarray(each).save(folder / f"{place}.png")
        split = ("train", "train", "train", "validation", "test")[place % 5]
        captions = [f"picture {place}", "five and six" if place in (5, 6) else f"a small picture {place} of noise"]
        entries.append(json.dumps({"file_name": f"{place}.png", "captions": captions, "split": split}))
    (folder / "metadata.jsonl").write_text("\n".join(entries) + "\n")
    return folder
