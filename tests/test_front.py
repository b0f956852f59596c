"""The front door: what `import openvse` offers, in the editor and at the prompt."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import openvse
from openvse.registry import installed

FRONT = Path(openvse.__file__)
DOCS = Path(__file__).parents[1] / "docs"
LIBRARY = DOCS / "figures" / "library.py"
MOST_NAMES = 125
"""The names that all rooms together hand out. Whatever else they hold is for openvse itself."""


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_dir_lists_names_and_rooms_and_each_is_there_with_an_example() -> None:
    listed = dir(openvse)
    assert {*openvse.__all__, "losses", "aggregators", "testing"} <= {*listed}
    assert all(getattr(openvse, name) is not None for name in listed)
    library = runpy.run_path(str(LIBRARY))
    public = {room: module.__all__ for room, module in library["rooms"]().items()}
    assert sum(map(len, public.values())) <= MOST_NAMES, {room: len(names) for room, names in public.items()}
    gone = [f"{room}.{name}" for room in public for name in public[room] if not hasattr(sys.modules[room], name)]
    told = set(re.findall(r"^\| `(openvse[\w.]*)`", library["names"](), re.MULTILINE))
    named = {f"{room}.{name}" for room in public for name in public[room]}
    told -= {"openvse_sentences.SentencePooling"}  # of a package beside openvse
    hidden = {each for each in told - named if each not in public and not hasattr(openvse, each[8:])}
    shown = library["examples"]()
    untold = named - told - {"openvse.SearchEngine", "openvse.__version__"}  # the first is in openvse.search
    assert (gone, hidden, untold, named - {*shown}) == ([], set(), set(), set())


def test_editors_see_what_the_prompt_sees() -> None:
    typed = {
        alias.asname or alias.name
        for block in ast.parse(FRONT.read_text()).body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    added = {name for name in installed("name") if "." not in name}
    assert typed | {"__version__"} | added == {*dir(openvse)} and added == {"Answerer", "testing", "vqa"}


@pytest.mark.medium
def test_a_room_needs_no_import_of_its_own_and_costs_nothing_before() -> None:
    code = "import sys, openvse; dir(openvse); before = 'torch' in sys.modules\n"
    code += "print(before, openvse.losses.__name__, openvse.aggregators.GPO.__name__)"
    assert in_a_fresh_process(code) == "False openvse.losses GPO"


@pytest.mark.medium
def test_the_prompt_completes_names() -> None:
    code = "import openvse, rlcompleter\ncompleter = rlcompleter.Completer({'openvse': openvse})\n"
    code += "print(completer.complete('openvse.los', 0), completer.complete('openvse.pool', 0))"
    pytest.importorskip("rlcompleter")
    assert in_a_fresh_process(code) == "openvse.losses openvse.pooling("


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'openvse'.*'lossess'"):
        _ = openvse.lossess
