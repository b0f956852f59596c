"""Parts by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openvse.errors import OpenVSEError, RecipeError
from openvse.registry import GROUP, Registry, _installed
from tests.naming import names, refusal


def test_names_are_sorted_and_unknown_ones_are_explained() -> None:
    registry: Registry[int] = Registry("thing", {"bee": int, "ant": int})
    assert list(registry) == ["ant", "bee"]
    assert "ant" in registry
    assert names(refusal(RecipeError, registry.get, "beee"), "'beee'", "'bee'")


def test_a_part_of_ones_own_joins_and_cannot_displace_another() -> None:
    registry: Registry[object] = Registry("thing", {"ant": int})
    registry.add("mine", str)
    registry.add("mine", str)  # importing a plug-in twice is harmless
    assert registry.get("mine") is str
    assert names(refusal(RecipeError, registry.add, "ant", str), "'ant'")


@pytest.fixture
def package(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """Install a package that adds three things, of which one cannot be imported."""
    (tmp_path / "ants.py").write_text("class Soldier: ...\n")
    info = tmp_path / "ants-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ants\nVersion: 1.0\n")
    lines = ("a_thing.soldier = ants:Soldier", "a_thing.queen = ants:Queen", "other.worker = ants:Worker")
    (info / "entry_points.txt").write_text("\n".join((f"[{GROUP}]", *lines)))
    monkeypatch.syspath_prepend(tmp_path)
    _installed.cache_clear()
    yield info / "entry_points.txt"
    _installed.cache_clear()
    sys.modules.pop("ants", None)


def test_a_package_adds_parts_and_is_imported_when_one_is_used(package: Path) -> None:
    registry: Registry[object] = Registry("a thing", {"ant": int})
    assert registry.names() == ["ant", "queen", "soldier"] and "soldier" in registry
    assert "ants" not in sys.modules
    soldier = registry.get("soldier")
    assert soldier is sys.modules["ants"].Soldier
    assert registry.name_of(soldier) == "soldier"
    assert names(refusal(OpenVSEError, registry.get, "queen"), "a_thing.queen", "ants", "AttributeError")
    assert names(refusal(RecipeError, registry.add, "queen", str), "'queen'")
    assert names(refusal(RecipeError, registry.get, "worker"), "adds other.worker", "should be a_thing.worker")
    registry.add("soldier", soldier)  # the same part, from a file that was given as well

    _installed.cache_clear()
    other = package.parent.with_name("bees-1.0.dist-info")
    other.mkdir()
    (other / "entry_points.txt").write_text(f"[{GROUP}]\na_thing.soldier = bees:Soldier\n")
    assert names(refusal(OpenVSEError, Registry("a thing", {}).names), "soldier")
