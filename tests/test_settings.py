"""Settings: each is declared once, and holds in the same words for the command line, REST, MCP and Python."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from openvse.cli.app import app
from openvse.cli.options import RunSettings
from openvse.errors import DataError
from openvse.indexing.manifest import IndexSettings
from openvse.search import Page, Query, SearchEngine
from openvse.serving.assistants import _TOOLS
from openvse.serving.schemas import OneSearch, asked_by
from openvse.serving.server import refusal
from openvse.serving.settings import Limits, Settings
from openvse.settings import settings_of
from tests.leaf_commands import whole_program

SOURCE = Path(__file__).parent.parent / "src" / "openvse"
ROOMS = ("cli", "indexing", "search", "serving")
CLASSES = (Query, Page, IndexSettings, Settings, Limits, RunSettings)
OTHERS = {
    *("text", "image", "name", "title", "host", "sentences", "device", "threads", "processes", "engine"),
    *("dtype", "ignore", "towers", "where"),
}
"""Settings whose names stand for other things, too, such as the heading of a contact sheet, or conditions as read."""


def declared(tree: ast.AST) -> Iterator[str]:
    """Yield the fields with a default of classes, and parameters with one that is neither None nor an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and each.value is not None]
            yield from (ast.unparse(each.target) for each in fields)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given, named = [*node.args.posonlyargs, *node.args.args], node.args.kwonlyargs
            pairs = [*zip(given[::-1], node.args.defaults[::-1], strict=False)]
            pairs += [(each, value) for each, value in zip(named, node.args.kw_defaults, strict=True) if value]
            for each, value in pairs:
                is_open = isinstance(value, ast.Constant) and value.value in (None, ...)
                if not is_open and not isinstance(value, ast.Attribute):
                    yield each.arg


def test_a_second_declaration_is_seen() -> None:
    code = "class A:\n    x: int | None = None\n    y: int\ndef f(x=2, *, y: int = 3, z=A.x, u=..., w=None): ..."
    assert [*declared(ast.parse(code))] == ["x", "x", "y"]


def test_a_setting_is_declared_in_one_file() -> None:
    wanted = {name for kind in CLASSES for name in settings_of(kind)} - OTHERS
    found: dict[str, set[str]] = {name: set() for name in wanted}
    for path in (path for room in ROOMS for path in (SOURCE / room).rglob("*.py")):
        for name in wanted & {*declared(ast.parse(path.read_text()))}:
            found[name].add(str(path.relative_to(SOURCE)))
    assert {name: places for name, places in found.items() if len(places) != 1} == {}


GIVEN: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("top_k", {"top_k": 0}, "--top-k"),
    ("skip", {"skip": -1}, "--skip"),
    ("min_precision", {"min_precision": 2.0}, "--min-precision"),
    ("expected", {"expected": 0.0}, "--expected"),
    ("image_weight", {"image_weight": 0.9}, "weight of --image"),
)
"""A setting, what is refused of it, and what the command line calls it."""


@pytest.mark.parametrize(("name", "given", "option"), GIVEN, ids=[name for name, *_ in GIVEN])
def test_a_wrong_setting_is_refused_in_the_same_words(name: str, given: dict[str, Any], option: str) -> None:
    in_python = refused(lambda: Page(**given) if name in settings_of(Page) else Query("red", **given))
    served = server_refusal(lambda: asked_by(OneSearch(text="red", **given), OneSearch(**given), None))
    assert in_python.startswith(name)
    if option.startswith("--"):
        result = CliRunner().invoke(app, ["search", "nowhere", "red", f"{option}={given[name]}"])
        assert result.exit_code == 2
        assert result.stderr == f"openvse: error: {in_python.replace(name, option)}\n"
    limit = {"top_k": " to 200", "skip": " to 10000", "expected": " and at most 1e+09"}.get(name, "")
    assert served == in_python + limit


def refused(make: Any) -> str:
    """Return the message with which Python refuses a setting."""
    with pytest.raises(DataError) as told:
        make()
    return str(told.value)


def server_refusal(make: Any) -> str:
    """Return the message with which the server refuses it, over REST and MCP alike."""
    with pytest.raises((DataError, ValidationError)) as told:
        make()
    service = SimpleNamespace(served=SimpleNamespace(readable=str))
    return refusal(service, told.value)[1]  # type: ignore[arg-type]


def test_names_and_defaults_are_the_same_everywhere() -> None:
    commands = whole_program().commands
    request = OneSearch.model_fields
    assert _TOOLS["search"][0] is OneSearch
    for kind, command in ((Page, "search"), (IndexSettings, "index"), (Settings, "serve"), (Limits, "serve")):
        options = {each.name: each for each in commands[command].params}
        for name, setting in settings_of(kind).items():
            if setting.panel is not None:
                assert setting.option in options[name].opts, name
                assert options[name].default in (setting.default, None), name
                assert options[name].help.startswith(setting.about), name
            if kind is Page:
                assert request[name].description == setting.about
                assert request[name].default == ([] if setting.is_list else setting.default)
    given = inspect.signature(SearchEngine.search).parameters
    for name in given.keys() & settings_of(Page).keys():
        assert given[name].default == settings_of(Page)[name].default
