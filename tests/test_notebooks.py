"""The notebooks are kept without their outputs, and their code is the code of the tutorials, which the tests run."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))


def code(notebook: Path) -> list[dict]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def test_there_are_two() -> None:
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_clean(notebook: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs the extra notebooks")
    nbformat.validate(nbformat.read(notebook, as_version=4))
    for cell in code(notebook):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        ast.parse("".join(cell["source"]))
        assert max(len(line.rstrip("\n")) for line in cell["source"]) <= 91


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_tutorial_is_the_notebook(notebook: Path) -> None:
    text = (EXAMPLES.parent / "docs" / "tutorials" / f"{notebook.stem}.md").read_text()
    title, *cells = json.loads(notebook.read_text())["cells"]
    assert text.startswith("".join(title["source"]).splitlines()[0] + "\n")
    for cell in cells:
        source = "".join(cell["source"]).rstrip(";")  # which keeps a notebook from printing the last value
        shown = f"```python\n{source}\n```\n" if cell["cell_type"] == "code" else f"\n{source}\n"
        before, found, text = text.partition(shown)
        assert found and "```python" not in before, "run docs/figures/tutorials.py: it makes the page anew"
    images = re.findall(r"\(\.\./images/(.*?)\)", text)
    assert all((EXAMPLES.parent / "docs" / "images" / name).is_file() for name in images)
