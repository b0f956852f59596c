"""Public names of a package that are imported when they are first used, since torch by itself takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str], rooms: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``.

    Args:
        package: the name of the package.
        modules: the module of each public name.
        rooms: submodules that are public names too, such as ``openvse.losses``.

    Examples:
        >>> __getattr__, __dir__ = lazy_names("openvse", {"load": "openvse.tasks.load"})
        >>> __dir__()
        ['load']
    """

    def get(name: str) -> Any:
        if name in rooms:
            return import_module(f"{package}.{name}")
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    def names() -> list[str]:
        return sorted({*modules, *rooms})

    return get, names
