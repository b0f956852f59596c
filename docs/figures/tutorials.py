"""Run the notebooks of ``examples/notebooks`` and write each as a page of ``docs/tutorials`` with its figures.

    python docs/figures/tutorials.py

The figures of a cell go to ``docs/images``; what a cell prints follows its code. The tests check that pages and
notebooks agree.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
HOW = (
    "This page is the notebook `examples/notebooks/{name}.ipynb`. To run it, install Jupyter and the extra `notebooks`."
)


def write_page(notebook: Path) -> None:
    """Run a notebook in a folder of its own and write its page."""
    cells = json.loads(notebook.read_text())["cells"]
    title, _, rest = "".join(cells[0]["source"]).partition("\n")
    parts = [title, HOW.format(name=notebook.stem), rest.strip()]
    scope: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells[1:], start=1):
        source = "".join(cell["source"]).rstrip(";")
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        if cell["cell_type"] == "code":
            parts += run(source, scope, f"{notebook.stem}_{number}")
    page = ROOT / "docs" / "tutorials" / f"{notebook.stem}.md"
    page.write_text("\n\n".join(parts) + "\n")


def run(source: str, scope: dict[str, object], name: str) -> list[str]:
    """Run one cell and return what it printed and drew, as Markdown."""
    plt.close("all")
    printed = StringIO()
    with redirect_stdout(printed):
        exec(source, scope)
    shown = [f"```text\n{printed.getvalue().strip()}\n```"] if printed.getvalue().strip() else []
    for figure in map(plt.figure, plt.get_fignums()):
        figure.savefig(ROOT / "docs" / "images" / f"{name}.png", bbox_inches="tight", dpi=80)
        shown.append(f"![The figure that this code draws](../images/{name}.png)")
    return shown


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "examples"))
    for each in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            write_page(each)
            os.chdir(ROOT)
