"""Parts by name. A room lists its parts in one Registry; the constructor's signature is the schema of a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from openvse.errors import RecipeError, nearest

PartT = TypeVar("PartT")


class Registry(Generic[PartT]):
    """The parts of one kind, by the name a recipe uses.

    Adding a part of your own takes one line in your own file: ``AGGREGATORS.add("my_pool", MyPool)``; pass that
    file to any command as ``--plugin my_file.py``.

    Args:
        kind: what the parts are called in messages, for instance "aggregator".
        parts: name to class (or factory), built in.
    """

    def __init__(self, kind: str, parts: Mapping[str, Callable[..., PartT]]) -> None:
        self.kind = kind
        self._parts: dict[str, Callable[..., PartT]] = dict(parts)

    def add(self, name: str, part: Callable[..., PartT]) -> None:
        """Register a part; raise RecipeError when another part has the name."""
        if self._parts.get(name, part) is not part:
            raise RecipeError(f"{self.kind} {name!r} exists already: choose another name")
        self._parts[name] = part

    def get(self, name: str) -> Callable[..., PartT]:
        """Return the class behind a name; raise RecipeError naming the allowed ones."""
        if name not in self._parts:
            names = self.names()
            raise RecipeError(
                f"unknown {self.kind} {name!r}{nearest(name, names)} (allowed: {', '.join(names)}; "
                f"a part of your own needs --plugin FILE)"
            )
        return self._parts[name]

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(self._parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._parts
