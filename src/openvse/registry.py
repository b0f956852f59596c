"""Parts by name. Each kind of part has one Registry, and the signature of a part's constructor is its schema.

More parts come from installed packages and from Python files of the user. A package lists its parts as entry points
of the group ``openvse.plugins``. Each has the name ``KIND.NAME``, with the kind in snake case, and names the part::

    [project.entry-points."openvse.plugins"] "aggregator.my_pool" = "my_package.pools:MyPool"

So a list of names imports no package, and a package is imported when one of its parts is used.
"""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from openvse.errors import OpenVSEError, RecipeError, choices, nearest
from openvse.halves import missing_package, refusal_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "openvse.plugins"
"""The group of the entry points with which a package adds parts."""

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


@cache
def _installed() -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return the entry points of all installed packages, by kind and name. No package is imported."""
    from importlib.metadata import entry_points  # it takes longer to import than all of this file

    found: dict[str, dict[str, EntryPoint]] = defaultdict(dict)
    for each in entry_points(group=GROUP):
        kind, _, name = each.name.partition(".")
        first = found[kind].setdefault(name, each)
        if first.value != each.value:
            raise OpenVSEError(f"two packages add {kind} {name!r}, as {first.value} and {each.value}: uninstall one")
    return found


def installed(kind: str) -> Mapping[str, EntryPoint]:
    """Return what installed packages add to a kind, such as "data set", by name. ``load_part`` imports one."""
    return _installed().get(kind.replace(" ", "_"), {})


def load_part(entry: EntryPoint) -> Any:
    """Import what an entry point names. Raise OpenVSEError, which names the package, if that fails."""
    try:
        return entry.load()
    except OpenVSEError:
        raise
    except Exception as error:  # a package may raise anything
        package = entry.dist.name if entry.dist else entry.module
        raise OpenVSEError(
            f"{entry.name} of the package {package} fails with {type(error).__name__}: {error}: update or uninstall it"
        ) from error


class Provided(Generic[PartT]):
    """A function of the training half that the search half calls: the entry point ``provider.NAME``, with its type."""

    def __init__(self, name: str, *, needs_torch: bool = True) -> None:
        self.name, self._needs_torch = name, needs_torch

    def get(self) -> PartT:
        """Import the function. Raise MissingHalfError if the packages of the training half are missing."""
        called = f"openvse's {self.name.replace('_', ' ')}"
        if self._needs_torch and missing_package():
            raise refusal_of(called)
        if (entry := installed("provider").get(self.name)) is None:
            raise OpenVSEError(f"{called} is missing, so the installation is broken: install openvse again")
        found: PartT = load_part(entry)
        return found


class Registry(Generic[PartT]):
    """The parts of one kind, by the names that recipes use: built-in ones, and those of installed packages.

    To add a part without a package, put one line in a file, ``AGGREGATORS.add("my_pool", MyPool)``, and pass that
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
        if self._parts.get(name, part) != part or (name not in self._parts and name in self):
            raise RecipeError(f"{self.kind} {name!r} exists already: choose another name")
        self._parts[name] = part

    def get(self, name: str) -> Maker[PartT]:
        """Return the class behind a name. Raise RecipeError, which lists the allowed names, if there is none."""
        if name in self._parts:
            return self._parts[name]
        if name not in self:
            remedy = "give one of these, install the package that has it, or register your own with --plugin FILE"
            for kind in (each for each, parts in _installed().items() if name in parts):
                own = f"{self.kind.replace(' ', '_')}.{name}"
                remedy = f"an installed package adds {kind}.{name}, but its entry point should be {own}"
            told = f"unknown {self.kind} {name!r}{nearest(name, self.names())}{choices(self.names(), self.listed_by)}"
            raise RecipeError(f"{told}: {remedy}")
        return self._parts.setdefault(name, load_part(installed(self.kind)[name]))

    def name_of(self, part: Maker[PartT]) -> str | None:
        """Return the name under which a class is registered, or None."""
        known = next((name for name, each in self._parts.items() if each is part), None)
        return known or next((name for name in self.names() if self.get(name) is part), None)

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted({*self._parts, *installed(self.kind)})

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._parts or name in installed(self.kind)


def parts_of(names: str, *modules: ModuleType) -> dict[str, type[Any]]:
    """Return the parts of modules by their names: the class ``KMax`` is ``k_max``, and ``GPO`` is ``gpo``."""
    classes = {
        name.lower(): each for module in modules for name, each in vars(module).items() if isinstance(each, type)
    }
    return {name: classes[name.replace("_", "")] for name in names.split()}


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
        raise OpenVSEError(f"plug-in {path} fails with {type(error).__name__}: {error}: correct the file") from error
    _plugins.append(path.absolute())


def loaded_plugins() -> tuple[Path, ...]:
    """Return the plug-ins that this process has loaded, so that its workers can load them too."""
    return tuple(dict.fromkeys(_plugins))
