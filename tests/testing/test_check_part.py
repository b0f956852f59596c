"""One call checks a part of any kind; openvse's own parts keep the promises, and broken ones are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from openvse.encoders.augmentations import AUGMENTATIONS, Augmentation
from openvse.encoders.projections import PROJECTIONS, Projection
from openvse.errors import RecipeError
from openvse.evaluation.metrics import METRICS, Metric
from openvse.fusion import FUSIONS
from openvse.media.formats import ImageFormat
from openvse.tasks import TASKS
from openvse.training.kind import TaskKind
from openvse_testing import BrokenContractError, check_part
from tests.cli.album import write_album
from tests.failures import Failures
from tests.naming import names, refusal

SMALL: dict[str, dict[str, Any]] = {
    "efficientnet_lite0": {"pretrained": False, "image_size": 32},
    "resnet": {"blocks": (1, 1, 1, 1), "stem_dim": 2, "inner_dim": 2, "image_size": 32, "fine_tune": False},
    "crops": {"backbone": {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32}, "windows": [[1, 1.0]]},
}


@pytest.mark.medium
def test_our_own_keep_their_promises() -> None:
    failures = Failures()
    cases: list[tuple[str, str, dict[str, Any]]] = [
        *(("backbone", name, options) for name, options in SMALL.items()),
        *(("text_encoder", name, {"min_count": 1, "word_dim": 6}) for name in ("bigru", "bag_of_words")),
        *(("fusion", name, {"num_heads": 2}) for name in FUSIONS),
        *((registry.kind, name, {}) for registry in (PROJECTIONS, AUGMENTATIONS, METRICS, TASKS) for name in registry),
    ]
    for kind, name, options in cases:
        with failures.of(kind, name):
            check_part(kind, name, options=options)
    assert not failures, failures


@pytest.mark.medium
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "tif", "jxl"])
def test_our_formats_keep_their_promises(suffix: str, tmp_path: Path) -> None:
    if suffix == "jxl":
        pytest.importorskip("pillow_jxl")
    noise = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / f"a.{suffix}")
    check_part("image_format", suffix, sample=tmp_path / f"a.{suffix}")


@pytest.mark.slow
def test_commands_and_recipes_keep_their_promises() -> None:
    check_part("command", "data.check")
    check_part("recipes", Path(__file__).parents[2] / "recipes" / "vse_infinity")
    with pytest.raises(BrokenContractError, match="no_such_command"):
        check_part("command", "no_such_command")


class Hides(Augmentation):
    def hide(self, mask: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(mask)


class Means(Projection):
    def __init__(self, *, input_dim: int) -> None:
        super().__init__(input_dim=input_dim, output_dim=input_dim)

    def forward(self, local: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return local + local.mean(dim=1, keepdim=True)


class Half(TaskKind):
    recipe, spec = TASKS.get("retrieval").recipe, TASKS.get("retrieval").spec  # type: ignore[attr-defined]


def test_broken_promises_are_named(tmp_path: Path) -> None:
    failures = Failures()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text("base: vse_infinity/folder_cpu\nimage: {aggregator: none_such}\n")
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    whole = tmp_path / "a.png"
    loose = ImageFormat("Loose", "loose png", begins=lambda start: True)
    for kind, part, sample, words in (
        ("augmentation", Hides, None, "keeps no feature"),
        ("projection", Means, None, "in a batch"),
        ("task", Half, None, "lacks build|lacks evaluate|lacks open"),
        ("metric", Metric("M", lambda direction: direction.ranks[:2]), None, "not one each"),
        ("metric", Metric("M", lambda direction: direction.ranks - direction.ranks[0]), None, "order of the queries"),
        ("metric", Metric("M", lambda direction: 1.0, lambda m, n: m[:1]), None, "chance"),
        ("image_format", loose, whole, "not of this format"),
        ("image_format", loose, whole, "begins is true"),
        ("recipes", tmp_path / "recipes", None, "none_such"),
    ):
        with failures.of(kind, words), pytest.raises(BrokenContractError, match=words):
            check_part(kind, part, sample=sample)
    assert not failures, failures
    assert names(refusal(RecipeError, check_part, "room", "kitchen"), "'room'", "image format")
    assert names(refusal(RecipeError, check_part, "data_set", "folder"), "sample=PATH")


@pytest.mark.medium
def test_a_store_and_a_data_set_are_checked_where_they_lie(tmp_path: Path) -> None:
    check_part("store", "int8", sample=tmp_path / "points")
    check_part("data_set", "folder", sample=write_album(tmp_path / "album"))
