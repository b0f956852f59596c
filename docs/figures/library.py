"""Write ``docs/reference/names.md``, the names of the library page with their first sentences, for readers of a clone.

python docs/figures/library.py
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

PAGES = Path(__file__).resolve().parents[1] / "reference"
PAGE = PAGES / "names.md"
HEAD = """# Names of the library

The names of the [library](library.md) with the first sentence of their documentation. `docs/figures/library.py` writes
this page. On the site, the library page has their arguments and errors.
"""


def found(name: str) -> object:
    """Return the module, class or function of a dotted name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        room, _, own = name.rpartition(".")
        return getattr(importlib.import_module(room), own)


def first_sentence(thing: object) -> str:
    """Return the first sentence of a docstring, as a cell of a table."""
    text = " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:]) (?=[A-Z`])", text)[0]
    return sentence.replace("``", "`").replace("|", "\\|")


def rows(name: str) -> list[str]:
    """Return a row for a name, and for what a module hands out."""
    thing = found(name)
    made = [f"| `{name}` | {first_sentence(thing)} |"]
    if isinstance(thing, ModuleType):
        made += [
            f"| `{name}.{own}` | {first_sentence(getattr(thing, own))} |"
            for own in getattr(thing, "__all__", [])
            if inspect.isclass(getattr(thing, own)) or inspect.isroutine(getattr(thing, own))
        ]
    return made


def page() -> str:
    """Return the page."""
    text = [HEAD]
    for line in (PAGES / "library.md").read_text().splitlines():
        if line.startswith("## "):
            text.append(f"\n{line}\n\n| name | meaning |\n|---|---|")
        elif line.startswith("::: "):
            text += rows(line[4:])
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
