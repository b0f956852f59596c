"""The limits that keep the package liveable: sizes, types, documentation, names."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from openvse.datasets.registry import DataSet
from openvse.evaluation import Metric
from openvse.media.formats import ImageFormat
from openvse.registry import Registry
from openvse.stores import StoreKind

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "openvse"

FILE_LINES = 700
FUNCTION_LINES = 60
USUAL_FUNCTION_LINES = 30
USUAL_SHARE = 0.9

# Modules that hold several small parts of one kind, or that would be called like one of Python's own modules;
# everywhere else a part's file bears the part's name.
SHARED_MODULES = {
    "base",
    "folder",
    "hf",
    "nested",
    "pretrained",
    "ranking",
    "scores",
    "words_encoder",
    "composed",
    "augmentations",
    "efficientnet_lite",
    "gpo",
    "projections",
    "word_splitters",
    "captioned",
    "entries",
    "learned",
    "hgr",
    "regularizers",
    "simple",
    "published",
}
# They stand for the constructors of all parts, each of which has keywords of its own.
HAND_KEYWORDS_ON = {
    "src/openvse/assembly/parts.py:PartMaker.__call__",
    "src/openvse/cli/options.py:with_settings.run",
    "src/openvse/registry.py:Configured.__new__",
}
# A path into somebody's machine; the brackets keep the pattern from finding itself.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|root|home|Users|opt)/[\w.]")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Definition:
    """A function, method or class of the package, and where it stands."""

    where: str
    node: Function | ast.ClassDef
    parent: ast.AST

    @property
    def lines(self) -> int:
        return (self.node.end_lineno or 0) - self.node.lineno + 1


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def line_count(path: Path) -> int:
    return len(path.read_text().splitlines())


def definitions(tree: ast.AST, where: str, parent: ast.AST | None = None) -> Iterator[Definition]:
    """Yield the definitions of a module and of its classes, and those nested in functions."""
    parent = parent or tree
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            name = f"{where}:{node.name}" if ":" not in where else f"{where}.{node.name}"
            yield Definition(name, node, parent)
            yield from definitions(node, name)
        else:
            yield from definitions(node, where, parent)


@functools.cache
def defined_in(path: Path) -> list[Definition]:
    """Return the definitions of a file, which is parsed once for all tests."""
    return list(definitions(ast.parse(path.read_text()), str(path.relative_to(ROOT))))


def defined(*folders: str) -> list[Definition]:
    """Return the definitions of some folders."""
    return [found for path in files(*folders) for found in defined_in(path)]


def functions(*folders: str) -> list[Definition]:
    return [found for found in defined(*folders) if isinstance(found.node, Function)]


def is_public(found: Definition) -> bool:
    """Say whether users can reach a definition: no underscore on the way to it, and not inside a function."""
    inside = isinstance(found.parent, Function)
    return not inside and not any(part.startswith("_") for part in found.where.split(":")[1].split("."))


def registries() -> list[Registry[object]]:
    """Return every registry that a room of the package exports."""
    rooms = [importlib.import_module(f"openvse.{path.parent.name}") for path in PACKAGE.glob("*/__init__.py")]
    values = (getattr(room, name) for room in rooms for name in dir(room))  # some rooms import them when used
    return [value for value in values if isinstance(value, Registry)]


def test_no_file_is_long() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in files("src", "tests", "benchmarks", "studies", "examples")
        if (n := line_count(p)) > FILE_LINES
    }
    assert long == {}


@pytest.mark.medium
def test_no_function_is_long() -> None:
    assert {f.where: f.lines for f in functions("src", "benchmarks", "studies") if f.lines > FUNCTION_LINES} == {}


@pytest.mark.medium
def test_most_functions_are_short() -> None:
    lengths = [found.lines for found in functions("src")]
    share = sum(length <= USUAL_FUNCTION_LINES for length in lengths) / len(lengths)
    assert share >= USUAL_SHARE, f"only {share:.1%} of the functions have at most {USUAL_FUNCTION_LINES} lines"


def test_no_function_swallows_keywords() -> None:
    taking = {f.where for f in functions("src") if f.node.args.kwarg is not None}
    assert taking == HAND_KEYWORDS_ON


@pytest.mark.medium
def test_public_names_are_documented() -> None:
    assert [str(path.relative_to(ROOT)) for path in files("src") if not documented(ast.parse(path.read_text()))] == []
    said = said_in_classes()
    missing = [
        found
        for found in defined("src")
        if is_public(found) and not documented(found.node) and not is_overload(found.node)
    ]
    assert [found.where for found in missing if not says_a_base(found.parent, found.node.name, said)] == []


def is_overload(node: Function | ast.ClassDef) -> bool:
    """Return whether it only states types of the function of its name, which is documented."""
    return any(ast.unparse(each) == "overload" for each in node.decorator_list)


def documented(node: Function | ast.ClassDef | ast.Module) -> bool:
    return bool((ast.get_docstring(node) or "").strip())


def said_in_classes() -> dict[str, tuple[list[str], set[str]]]:
    """Return the bases of each class of the package, and its documented methods."""
    return {
        found.node.name: (
            [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in found.node.bases],
            {each.name for each in found.node.body if isinstance(each, Function) and documented(each)},
        )
        for found in defined("src")
        if isinstance(found.node, ast.ClassDef)
    }


def says_a_base(owner: ast.AST, method: str, said: dict[str, tuple[list[str], set[str]]]) -> bool:
    """Return whether one of our classes, of which this one is a kind, documents its method."""
    bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in getattr(owner, "bases", [])]
    while bases:
        above, methods = said.get(bases.pop(), ([], set()))
        if method in methods:
            return True
        bases += above
    return False


def test_a_method_without_words_needs_a_base_that_has_them() -> None:
    tree = ast.parse("class Low(Middle): ...")
    said = {"Middle": (["Base"], {"close"}), "Base": ([], {"read"})}
    asked = ("close", "read", "write")
    assert [says_a_base(tree.body[0], method, said) for method in asked] == [True, True, False]


def test_every_function_is_typed() -> None:
    typed = functions("src")
    untyped = [
        f"{found.where}({argument.arg})"
        for found in typed
        for argument in arguments(found)
        if argument.annotation is None
    ]
    assert untyped == []
    assert [found.where for found in typed if found.node.returns is None] == []


def arguments(found: Definition) -> list[ast.arg]:
    """Return the arguments that need a type: all but a method's self or cls."""
    spec = found.node.args
    positional = [*spec.posonlyargs, *spec.args]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in found.node.decorator_list)
    bound = isinstance(found.parent, ast.ClassDef) and not static
    return [*positional[bound:], *spec.kwonlyargs, *([spec.vararg] if spec.vararg else [])]


def test_no_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "helpers", "helper", "misc", "common"}
    assert [path for path in files("src", "tests", "benchmarks", "studies") if path.stem in drawers] == []


def test_files_of_tests_have_names_of_their_own() -> None:
    """Files of tests lie in no package, so two of one name cannot be collected together."""
    names = Counter(path.name for path in files("tests") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.medium
def test_no_path_of_a_machine_is_tracked() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    found = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        text = path.read_bytes().decode(errors="ignore") if path.is_file() else ""
        if match := MACHINE_PATH.search(text):
            found[name] = match.group()
    assert found == {}


def names_of_class(name: str, kind: str) -> set[str]:
    """Return what the class of a part may be called; ``linear``: Linear, LinearProjection; ``none``: NoProjection."""
    own, noun = name.replace("_", ""), kind.rpartition(" ")[2]
    return {own, f"{own}{noun}"} if name != "none" else {f"no{noun}"}


def test_registries_are_found() -> None:
    kinds = {registry.kind for registry in registries()}
    assert {"aggregator", "similarity", "miner", "criterion"} <= kinds


@pytest.mark.medium
def test_parts_are_where_their_names_say() -> None:
    misplaced = {}
    for registry in registries():
        for name in registry:
            part = registry.get(name)
            if isinstance(part, ImageFormat | Metric):  # which are values, and no code
                continue
            part = part.store if isinstance(part, StoreKind) else part
            made_by = part = part.opens if isinstance(part, DataSet) else part
            place = set(made_by.__module__.split("."))
            named = not inspect.isclass(part) or part.__name__.lower() in names_of_class(name, registry.kind)
            if not named or not place & {name, *SHARED_MODULES}:
                misplaced[f"{registry.kind} {name}"] = f"{made_by.__module__}.{made_by.__name__}"
    assert misplaced == {}


@pytest.mark.medium
def test_examples_in_docstrings_are_true() -> None:
    """What was expected and what was printed instead is in the output that pytest captured."""
    with_examples = [path for path in files("src") if ">>>" in path.read_text()]
    assert with_examples
    false = {}
    for path in with_examples:
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        ran = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        if ran.failed:
            false[name] = f"{ran.failed} of {ran.attempted} examples fail"
    assert false == {}


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("see " + "/work" + "/main", True),
        ("'" + "/root" + "/.cache'", True),
        ("a/work/b", False),
        (".../home/x", False),
    ],
)
def test_the_path_pattern(text: str, caught: bool) -> None:
    assert bool(MACHINE_PATH.search(text)) is caught


def test_definitions_reach_methods_and_nested_functions() -> None:
    tree = ast.parse(
        "class A:\n    def b(self, x):\n        with x:\n            def c(): ...\nif 1:\n    def d(): ..."
    )
    found = {item.where: item for item in definitions(tree, "m.py")}
    assert list(found) == ["m.py:A", "m.py:A.b", "m.py:A.b.c", "m.py:d"]
    assert [argument.arg for argument in arguments(found["m.py:A.b"])] == ["x"]
    assert found["m.py:A.b"].lines == 3
    assert is_public(found["m.py:A.b"]) and not is_public(found["m.py:A.b.c"])
    assert not is_public(Definition("m.py:_A.b", found["m.py:A.b"].node, tree))
