"""The contract of exported models: the embedding of an item does not depend on the other items of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporting.conftest import unchecked  # noqa: F401 - a fixture
from exporting.exported_models import with_gpo
from openvse import export
from openvse.conversion.convert import convert
from openvse.model.two_tower import TwoTower
from openvse.runtime import OnnxModel
from tests.dual_checkpoints import save_dual

pytestmark = pytest.mark.slow

SENTENCES = ("a dog", "the quick brown fox jumps over the lazy dog, 12345 !!! " * 4, "a cat", "", "two cat sits")
RANDOM = np.random.default_rng(0)
PIXELS = [RANDOM.integers(0, top, (40, 64, 3), dtype=np.uint8) for top in (3, 30, 255)]
SETS = [top * RANDOM.standard_normal((size, 10)).astype(np.float32) for size, top in ((1, 9), (7, 1))]
Embed = Callable[[Sequence[Any]], np.ndarray]


def clip(folder: Path) -> TwoTower:
    model = convert(str(save_dual("clip", folder / "checkpoint")), folder / "model").model
    assert isinstance(model, TwoTower)
    return model.eval()


MODELS: dict[str, Callable[[Path], TwoTower]] = {"clip": clip, "gpo": lambda folder: with_gpo()}


def embedders(model: TwoTower, folder: Path, kind: str) -> tuple[Embed, Embed | None]:
    """Export a model, and return what embeds sentences and what embeds images or their features."""
    if kind == "sentence_transformers":
        from sentence_transformers import SentenceTransformer

        export(model, folder, format="sentence_transformers")
        loaded: Any = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
        return lambda some: np.asarray(loaded.encode(list(some), show_progress_bar=False)), None
    export(model, folder, int8=kind == "int8")
    return embedders_of(folder)


def embedders_of(folder: Path) -> tuple[Embed, Embed]:
    """Return what embeds sentences and what embeds images or their features, of an export."""
    runtime = OnnxModel(folder)
    of_images = runtime.encode_image if runtime.reads_images else runtime.encode_features
    return lambda some: runtime.encode_text(list(some)).vectors, lambda some: of_images(list(some)).vectors


@pytest.mark.parametrize(("name", "kind"), [("clip", "int8"), ("gpo", "sentence_transformers")])
def test_other_items_change_nothing(name: str, kind: str, tmp_path: Path) -> None:
    """``exporting/test_export.py`` asks the same of the exports that it has made."""
    model = MODELS[name](tmp_path)
    of_texts, of_images = embedders(model, tmp_path / "exported", kind)
    expect_alone(of_texts, SENTENCES)
    if of_images is not None:
        expect_alone(of_images, PIXELS)


def expect_alone(embed: Embed, items: Sequence[Any]) -> None:
    together = embed(items)
    for place, item in enumerate(items):
        assert np.abs(embed([item])[0] - together[place]).max() < 1e-5, place
