"""The tables of ``docs/reference/names.md``: every public name with its first sentence and its example."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import openvse
import openvse_engines
import openvse_papers
import openvse_testing
from openvse.registry import Registry

DOCS = Path(__file__).resolve().parents[1]
PACKAGES = (openvse, openvse_papers, openvse_engines, openvse_testing)
PAGES = ("library", "pooling", "scores", "encoders", "data", "evaluation", "nouns")
"""The pages of the reference that list names."""

PROGRAMS = ("reference/examples.md", "parts.md", "export.md", "add_a_part.md", "backbones.md", "data.md")
"""The pages with examples of names. A name is linked to the first one that uses it."""


def rooms() -> dict[str, ModuleType]:
    """Return the packages and their rooms that hand out names, by dotted name."""
    names = [package.__name__ for package in PACKAGES]
    for package in PACKAGES:
        names += [each.name for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]
    modules = {name: importlib.import_module(name) for name in names if not name.endswith("__main__")}
    return {name: module for name, module in modules.items() if hasattr(module, "__all__")}


@cache
def public() -> dict[str, object]:
    """Return what the packages and their rooms hand out, by dotted name."""
    return {f"{room}.{name}": getattr(module, name) for room, module in rooms().items() for name in module.__all__}


def used(tree: ast.AST, bound: dict[str, str]) -> Iterator[str]:
    """Yield the dotted name of everything of openvse that code uses. ``bound`` keeps what it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            bound |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, dot, rest = ast.unparse(node).partition(".")
            yield bound.get(first, "") + dot + rest


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield the heading above each Python block of a page, and the block."""
    heading = ""
    for title, block in re.findall(
        r"^#+ (.*?)$|^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL
    ):
        heading = title or heading
        if block:
            yield heading, block


@cache
def examples() -> dict[str, str]:
    """Return the link to the example of each public name that has one. Two names of one object share it."""
    links: dict[int, str] = {}
    for page in PROGRAMS:
        bound: dict[str, str] = {}
        for heading, block in blocks(page):
            place = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
            target = page.removeprefix("reference/") if page.startswith("reference/") else f"../{page}"
            for name in used(ast.parse(block), bound):
                if name in public():
                    links.setdefault(id(public()[name]), f"[{heading}]({target}#{place})")
    return {name: links[id(thing)] for name, thing in public().items() if id(thing) in links}


def first_sentence(thing: object) -> str:
    """Return the first sentence of a docstring, as a cell of a table."""
    if isinstance(thing, Registry):
        return f"The registry: every {thing.kind} by its name."
    text = " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:]) (?=[A-Z`])", text)[0]
    return sentence.replace("``", "`").replace("|", "\\|")


def rows(name: str) -> list[str]:
    """Return a row for a name, and for what a module hands out."""
    thing = public().get(name) or pkgutil.resolve_name(name)
    last = name.rpartition(".")[2]
    called = f"openvse.{last}" if name not in public() and getattr(openvse, last, None) is thing else name
    if not isinstance(thing, ModuleType):
        return [f"| `{called}` | {first_sentence(thing)} | {examples().get(name, '')} |"]
    own = [row for each in getattr(thing, "__all__", []) for row in rows(f"{name}.{each}")]
    return [f"| `{called}` | {first_sentence(thing)} | |", *own]


def names() -> str:
    """Return the tables."""
    text: list[str] = []
    for each in PAGES:
        for line in (DOCS / "reference" / f"{each}.md").read_text().splitlines():
            if line.startswith("## " if each == "library" else "# "):
                text.append(f"\n## {line.lstrip('# ')}\n\n| name | meaning | example |\n|---|---|---|")
            elif line.startswith("::: "):
                text += rows(line[4:])
    return "\n".join(text)
