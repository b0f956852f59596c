"""Parts by name. Each kind of part has one Registry, and the signature of a part's constructor is its schema.

Plug-ins are Python files of the user that register more parts.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from openvse.errors import OpenVSEError, RecipeError, choices, nearest

PartT = TypeVar("PartT")

Maker: TypeAlias = Callable[..., PartT]
"""A factory of a part: its class, or the build with the options of a recipe.

A constructor's argument of the type ``Maker[Aggregator]`` is a part inside a part: the outer part calls it, once or
more, with its own arguments, such as widths. An argument of the type ``Miner`` is built beforehand.
"""


class Configured:
    """Remembers the arguments of its constructor, so that a model knows which parts it consists of.

    Every kind of part that a recipe can name has it as its first base class, before ``nn.Module``.
    """

    _arguments: tuple[tuple[Any, ...], Mapping[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Keep the arguments, which are also passed to the constructor."""
        made = super().__new__(cls)
        # Bypass nn.Module, which does not accept attributes before its own constructor has run.
        object.__setattr__(made, "_arguments", (args, options))
        return made

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor, by name."""
        args, options = self._arguments
        return dict(inspect.signature(type(self)).bind_partial(*args, **options).arguments)


class Registry(Generic[PartT]):
    """The parts of one kind, by the names that recipes use.

    To add your own part, put one line in your own file, ``AGGREGATORS.add("my_pool", MyPool)``, and pass that
    file to any command as ``--plugin my_file.py``.

    Args:
        kind: the name of such parts in messages, for instance "aggregator".
        parts: the built-in parts, a class or factory for each name.

    Attributes:
        listed_by: the command that lists all parts.
    """

    listed_by: ClassVar[str] = "openvse list parts"

    def __init__(self, kind: str, parts: Mapping[str, Maker[PartT]]) -> None:
        self.kind = kind
        self._parts: dict[str, Maker[PartT]] = dict(parts)

    def add(self, name: str, part: Maker[PartT]) -> None:
        """Register a part. Raise RecipeError if another part has the name."""
        if self._parts.get(name, part) is not part:
            raise RecipeError(f"{self.kind} {name!r} exists already: choose another name")
        self._parts[name] = part

    def get(self, name: str) -> Maker[PartT]:
        """Return the class behind a name. Raise RecipeError, which lists the allowed names, if there is none."""
        if name not in self._parts:
            names = self.names()
            raise RecipeError(
                f"unknown {self.kind} {name!r}{nearest(name, names)}{choices(names, self.listed_by)}: "
                f"give one of these, or register your own with --plugin FILE"
            )
        return self._parts[name]

    def name_of(self, part: Maker[PartT]) -> str | None:
        """Return the name under which a class is registered, or None."""
        return next((name for name, each in self._parts.items() if each is part), None)

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(self._parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._parts


_plugins: list[Path] = []


def load_plugin(path: Path) -> None:
    """Run a Python file that registers parts. Raise OpenVSEError if it is missing, no Python, or fails."""
    from importlib.util import module_from_spec, spec_from_file_location

    name = f"openvse_plugin_{path.stem}"  # a file copy.py is not Python's own copy
    spec = spec_from_file_location(name, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise OpenVSEError(f"plug-in {path} is not a Python file: give a .py file that registers parts")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file may raise anything
        del sys.modules[name]
        raise OpenVSEError(
            f"plug-in {path} fails with {type(error).__name__}: {error}: correct the file"
        ) from error
    _plugins.append(path.absolute())


def loaded_plugins() -> tuple[Path, ...]:
    """Return the plug-ins that this process has loaded, so that its workers can load them too."""
    return tuple(dict.fromkeys(_plugins))
