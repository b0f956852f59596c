"""Public names of a package that are imported when they are first used, since torch by itself takes seconds."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from openvse.registry import installed, load_part


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package, by its name.

    The lazy names are those that its ``__init__.py`` imports only for type checkers, under ``if TYPE_CHECKING``. An
    installed package adds one as ``name.NAME``, or ``name.ROOM.NAME`` in a room.
    """
    within = f"{package}.".removeprefix("openvse.")

    def get(name: str) -> Any:
        if (source := _sources(package).get(name)) is None:
            if entry := installed("name").get(f"{within}{name}"):
                return load_part(entry)
            inits = sorted(Path(__file__).parent.glob("*/__init__.py"))
            room = next((each.parent.name for each in inits if f'"{name}",' in each.read_text()), None)
            hint = f": it is in openvse.{room}" if room else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        # A submodule is imported; any other name is taken from its module.
        return import_module(f"{package}.{name}") if source == package else getattr(import_module(source), name)

    def names() -> list[str]:
        added = {each.removeprefix(within) for each in installed("name") if each.rpartition(".")[0] == within[:-1]}
        return sorted({*sys.modules[package].__all__, *_sources(package), *added})

    return get, names


@cache
def _sources(package: str) -> dict[str, str]:
    """Return the module of each name that a package imports for type checkers."""
    tree = ast.parse(pkgutil.get_data(package, "__init__.py") or b"")
    checked = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [each for node in checked for each in node.body if isinstance(each, ast.ImportFrom)]
    return {alias.name: str(each.module) for each in imports for alias in each.names}
