"""Parts by name."""

from __future__ import annotations

import pytest

from openvse.errors import RecipeError
from openvse.registry import Registry


def test_names_are_sorted_and_unknown_ones_are_explained() -> None:
    registry: Registry[int] = Registry("thing", {"bee": int, "ant": int})
    assert list(registry) == ["ant", "bee"]
    assert "ant" in registry
    with pytest.raises(RecipeError, match="'beee'.*'bee'"):
        registry.get("beee")


def test_a_part_of_ones_own_joins_and_cannot_displace_another() -> None:
    registry: Registry[object] = Registry("thing", {"ant": int})
    registry.add("mine", str)
    registry.add("mine", str)  # importing a plug-in twice is harmless
    assert registry.get("mine") is str
    with pytest.raises(RecipeError, match="already"):
        registry.add("ant", str)
