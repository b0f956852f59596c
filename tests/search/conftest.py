"""Images to index, and a model that needs no weights."""

from pathlib import Path

import pytest

from colour_model import ColourModel, paint


@pytest.fixture
def model() -> ColourModel:
    return ColourModel()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with one image of every colour, one of them in a folder below."""
    folder = tmp_path / "photos"
    for name in ("red", "green", "blue"):
        paint(folder / f"{name}.png", name)
    paint(folder / "deeper" / "white.png", "white")
    return folder
