"""A small album with captions, a recipe of a second for it, and what a folder holds."""

from __future__ import annotations

import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image
from PIL.PngImagePlugin import PngInfo

COLOURS = {"red": (200, 30, 30), "green": (30, 160, 40), "blue": (40, 60, 200), "yellow": (230, 210, 40)}
SPLITS = ("train", "train", "train", "validation", "test")


def write_album(folder: Path, num_images: int = 20) -> Path:
    """Write images of two colours, two captions each, and their ``metadata.jsonl``."""
    folder.mkdir(parents=True)
    lines = []
    for number in range(num_images):
        upper, lower = np.roll(list(COLOURS), -number)[[0, 1 + number // 4 % 3]]
        pixels = np.zeros((48, 64, 3), np.uint8)
        pixels[:24], pixels[24:] = COLOURS[upper], COLOURS[lower]
        name = PngInfo()
        name.add_text("name", str(number))  # images may look the same, and are not the same file
        Image.fromarray(pixels).save(folder / f"{number:02d}.png", pnginfo=name)
        captions = [f"{upper} sky above {lower} ground", f"a {lower} field under something {upper}"]
        entry = {"file_name": f"{number:02d}.png", "captions": captions, "split": SPLITS[number % 5]}
        lines.append(json.dumps(entry))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def write_recipe(path: Path, source: Path) -> Path:
    """Write a recipe of a second: random EfficientNet-Lite0 features of 64 pixels, width 16, two epochs."""
    tree = {
        "name": "tiny",
        "embed_dim": 16,
        "image": {
            "encoder": {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64},
            "aggregator": "gpo",
        },
        "text": {"encoder": {"name": "bigru", "word_dim": 8, "min_count": 1}, "aggregator": "gpo"},
        "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": "hinge"}},
        "data": {"source": str(source), "features": "auto"},
        "training": {"batch_size": 8, "threads": 1, "device": "cpu", "phases": [{"epochs": 2}]},
    }
    path.write_text(yaml.safe_dump(tree))
    return path


def write_pictured_questions(folder: Path, num_images: int = 15) -> Path:
    """Write images of one colour, and two questions about each; the last has an unreadable image."""
    folder.mkdir(parents=True)
    lines = []
    for number in range(num_images):
        colour = list(COLOURS)[number % len(COLOURS)]
        name = PngInfo()
        name.add_text("name", str(number))
        Image.new("RGB", (48, 40), COLOURS[colour]).save(folder / f"{number:02d}.png", pnginfo=name)
        for question, answer in (("what colour is it", colour), (f"is it {colour}", "yes")):
            lines.append({"file_name": f"{number:02d}.png", "question": question, "answer": answer})
            lines[-1]["split"] = SPLITS[number % 5]
    (folder / "14.png").write_bytes(b"no image")
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


def answering_recipe(data: Path) -> dict[str, Any]:
    """Return a recipe of a second that answers such questions."""
    encoder = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64, "augmentation": "none"}
    return {
        "task": "vqa",
        "name": "tiny",
        "embed_dim": 16,
        "image": {"encoder": encoder, "aggregator": "tokens"},
        "text": {"encoder": {"name": "bigru", "word_dim": 8, "min_count": 1}, "aggregator": "tokens"},
        "fusion": {"name": "score_attention", "num_heads": 2, "num_vectors": 2},
        "answers": {"min_count": 1},
        "data": {"source": f"question_folder:{data}", "features": "auto"},
        "training": {"batch_size": 9, "threads": 1, "device": "cpu", "phases": [{"epochs": 2}]},
    }


class Page(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.source = path.read_text()
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def check_needs_nothing(self) -> None:
        """It has images, all of them inside, and neither scripts nor addresses."""
        images = [attributes["src"] for tag, attributes in self.tags if tag == "img"]
        assert images
        assert all(source is not None and source.startswith("data:image/webp;base64,") for source in images)
        assert not any(tag in ("script", "link", "iframe") for tag, _ in self.tags)
        assert "http" not in re.sub(r"base64,[\w+/=]+", "", self.source)


def digest(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
