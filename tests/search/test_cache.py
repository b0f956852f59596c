"""A memory of limited size."""

from __future__ import annotations

from openvse.search.cache import ByteCache


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    kept, made = ByteCache[bytes](100), list[str]()

    for name in ("a", "b", "a", "c", "a", "b"):
        if kept.find(name) is None:
            made.append(name)
            kept.keep(name, bytes(40))
        assert len(kept) <= 100
    assert made == ["a", "b", "c", "b"]  # b was not used for longest when c came


def test_what_is_too_large_is_not_kept_and_the_first_of_two_stays() -> None:
    kept = ByteCache[str](3)
    kept.keep("a", "long")
    assert kept.find("a") is None and len(kept) == 0
    kept.keep("b", "one")
    kept.keep("b", "two")
    assert kept.find("b") == "one" and len(kept) == 3
