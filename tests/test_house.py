"""The size of the house: one name means one thing, files import in one direction, the command line stays small."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from tests.leaf_commands import whole_program

SOURCE = Path(__file__).parent.parent / "src"
ROOT = SOURCE.parent
# These bounds go down with what is deleted, and never up: whoever needs a line deletes one, or writes a plug-in.
MOST_COMMANDS, MOST_PARAMETERS, MOST_OF_SEARCH = 26, 266, 21
PACKAGES = {
    "openvse": (51_781, 213),
    "openvse_engines": (802, 5),
    "openvse_papers": (7_478, 23),
    "openvse_testing": (1_234, 7),
}
"""The most lines and files of each package."""
MOST_CODE, MOST_OF_TESTS, MOST_RECIPES, MOST_CALLS = 41_166, 59_936, 54, 4
"""Lines of code of all packages, lines of the tests, files of recipes, and calls of the training half by name."""


@cache
def modules() -> dict[str, ast.Module]:
    """Return every module of the package by its name, the front doors of the rooms by those of the rooms."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
        for path in sorted(SOURCE.rglob("*.py"))
    }


def front_doors() -> dict[str, dict[str, str]]:
    """Return the names that each room hands out, and the modules where they are."""
    doors: dict[str, dict[str, str]] = {}
    for path in sorted(SOURCE.rglob("__init__.py")):
        room = ".".join(path.relative_to(SOURCE).parent.parts)
        doors[room] = {
            alias.asname or alias.name: node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module is not None
            for alias in node.names
        }
    return doors


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import that runs, wherever it stands; those for types alone do not run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        yield from imports(node)


def circles(needed: dict[str, set[str]]) -> list[str]:
    """Return the modules of a circle of imports, if there is one."""
    try:
        TopologicalSorter(needed).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_a_circle_is_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert list(imports(ast.parse("def late():\n    from openvse.x import y"))) == [("openvse.x", "y")]
    assert list(imports(ast.parse("import openvse.x"))) == [("openvse.x", "")]
    assert list(imports(ast.parse("if TYPE_CHECKING:\n    from openvse.x import y"))) == []


@pytest.mark.medium
def test_no_file_imports_itself_by_way_of_others() -> None:
    trees, doors = modules(), front_doors()

    def place(module: str, name: str) -> str:
        seen: set[str] = set()
        while name in doors.get(module, {}) and module not in seen:
            seen.add(module)
            module = doors[module][name]
        return f"{module}.{name}" if f"{module}.{name}" in trees else module

    needed = {own: {place(*each) for each in imports(tree)} & trees.keys() - {own} for own, tree in trees.items()}
    assert circles(needed) == []


def public_names(tree: ast.Module) -> Iterator[str]:
    """Yield the public classes, functions and aliases of types that a module defines."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
            names = [
                each.id
                for each in node.targets
                if isinstance(each, ast.Name) and each.id[1:].lower() == each.id[1:] and each.id[0].isupper()
            ]
        elif isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
            names = [ast.unparse(node.target)]
        else:
            continue
        yield from (name for name in names if not name.startswith("_"))


@pytest.mark.medium
def test_a_public_name_means_one_thing() -> None:
    """The functions of commands and the types of their options have the names that users write."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, tree in modules().items():
        if module.split(".")[1:2] not in (["cli"], ["train_cli"], ["commands"]):
            for name in public_names(tree):
                found[name].append(module)
    assert {name for name, places in found.items() if len(places) > 1} == set()


def lines_of(folder: Path) -> tuple[int, int]:
    """Return the lines and the files of Python below a folder."""
    files = list(folder.rglob("*.py"))
    return sum(len(path.read_text().splitlines()) for path in files), len(files)


def code_of(path: Path) -> int:
    """Return the lines of a file that hold code: no comment, no docstring, and not only white space."""
    text = path.read_text()
    told = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in {*silent, tokenize.ENDMARKER}
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - told)


def test_the_source_has_a_bounded_size() -> None:
    found = {path.name: lines_of(path) for path in SOURCE.iterdir() if path.is_dir()}
    assert found.keys() == PACKAGES.keys()
    for name, (lines, files) in found.items():
        assert lines <= PACKAGES[name][0] and files <= PACKAGES[name][1], name
    assert lines_of(ROOT / "tests")[0] <= MOST_OF_TESTS
    assert len([*(ROOT / "recipes").rglob("*.yaml")]) <= MOST_RECIPES


@pytest.mark.medium
def test_the_source_has_a_bounded_amount_of_code(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""Two\nlines."""\n\n# said\nx = (\n    1\n)  # here\n')
    assert code_of(tmp_path / "a.py") == 3
    assert sum(map(code_of, SOURCE.rglob("*.py"))) <= MOST_CODE


def test_few_things_are_asked_of_the_training_half_by_their_name() -> None:
    calls = [
        node
        for tree in modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "training_module"
    ]
    assert 0 < len(calls) <= MOST_CALLS


@pytest.mark.parametrize(("name", "most"), [("", MOST_PARAMETERS), ("search", MOST_OF_SEARCH)])
def test_the_command_line_has_a_bounded_number_of_parameters(name: str, most: int) -> None:
    def count(command: object) -> int:
        return len(command.params) + sum(map(count, getattr(command, "commands", {}).values()))  # type: ignore[attr-defined]

    whole = whole_program()
    assert count(whole.commands[name] if name else whole) <= most  # type: ignore[attr-defined]


def test_data_are_an_argument_behind_what_reads_them_or_the_option_on() -> None:
    def commands(command: object, name: str) -> Iterator[tuple[str, list[Any]]]:
        yield name, command.params  # type: ignore[attr-defined]
        for each, below in getattr(command, "commands", {}).items():
            yield from commands(below, f"{name} {each}".strip())

    given: dict[str, set[str]] = {"on": set(), "data": set()}
    for name, params in commands(whole_program(), ""):
        for place, each in enumerate(params):
            if "DATA" in (each.metavar, each.name.upper()):
                on = each.opts == ["--on"]
                assert on or place == (0 if name == "data check" else 1), name
                given["on" if on else "data"].add(name)
    assert given["data"] == {"data check", "encode", "extract"}
    assert given["on"] >= {"blend", "compare", "evaluate", "export", "analyze hits"}


def test_the_command_line_has_a_bounded_number_of_commands() -> None:
    def count(command: object) -> int:
        return sum(map(count, below.values())) if (below := getattr(command, "commands", {})) else 1

    assert count(whole_program()) <= MOST_COMMANDS
