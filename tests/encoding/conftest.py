"""A model with random weights, and images to encode."""

from pathlib import Path

import pytest
from PIL import Image

from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.tasks.recipes import parse_recipe
from tests.tiny import tiny_tree

CAPTIONS = ["red dog runs", "green cat sleeps on the grass", "blue bird"]


@pytest.fixture(scope="session")
def model() -> TwoTower:
    tree = tiny_tree(Path())
    tree["image"]["encoder"] = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32}
    return build_model(parse_recipe(tree), captions=CAPTIONS).eval()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with 11 images, a broken one, a clip and a document."""
    folder = tmp_path / "photos"
    (folder / "deeper").mkdir(parents=True)
    for number in range(11):
        below = folder / "deeper" if number % 3 == 0 else folder
        Image.new("RGB", (40, 32), (20 * number, 255 - 9 * number, 60)).save(below / f"{number:02d} é.png")
    (folder / "05 broken.jpg").write_text("no image")
    (folder / "clip.mp4").write_bytes(b"0")
    (folder / "letter.pdf").write_bytes(b"%PDF")
    return folder
