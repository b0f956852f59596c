"""The API reference names what is there, and everything that `import openvse` offers is in it."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import openvse
from openvse.registry import installed

PAGES = sorted((Path(__file__).parent.parent / "docs" / "reference").glob("*.md"))
SHOWN = [name for page in PAGES for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)]


def found(name: str) -> object:
    """Return the module, class or function of a dotted name; None where there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        room, _, own = name.rpartition(".")
        return getattr(importlib.import_module(room), own, None)


def test_what_the_reference_names_is_there_and_documented() -> None:
    assert SHOWN
    assert [name for name in SHOWN if not (found(name).__doc__ or "").strip()] == []
    # A module of the reference says which of its names are public.
    modules = [each for each in map(found, SHOWN) if inspect.ismodule(each) and not hasattr(each, "__all__")]
    assert [
        f"{module.__name__}.{name}"
        for module in modules
        for name, own in vars(module).items()
        if getattr(own, "__module__", "") == module.__name__ and name[0] not in "_"
    ] == []


def test_everything_that_openvse_offers_is_in_the_reference() -> None:
    elsewhere = {"openvse.model", "openvse.SearchEngine"}  # its classes by themselves; in openvse.search
    offered = {f"openvse.{name}" for name in dir(openvse) if not name.startswith("__")}
    added = {
        f"openvse.{name}": each.value.replace(":", ".") for name, each in installed("name").items() if "." not in name
    }
    assert offered - elsewhere - {*SHOWN, *added} == set() and {*added.values()} - {*SHOWN} == set()


def test_nothing_is_in_the_reference_twice() -> None:
    assert len(SHOWN) == len({*SHOWN})
