"""The notebooks run from the first cell to the last, and are kept without their outputs."""

from __future__ import annotations

import ast
import json
import re
import shutil
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


@pytest.mark.slow
def test_the_notebooks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel runs all, each in a folder of its own and without the names of the others; few epochs are enough."""
    nbclient = pytest.importorskip("nbclient", reason="needs the extra notebooks")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import KernelManager

    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    kernel = KernelManager(kernel_name="python3")
    try:
        for notebook in NOTEBOOKS:
            folder = tmp_path / notebook.stem / "notebooks"
            folder.mkdir(parents=True)
            shutil.copy(EXAMPLES / "shapes.py", folder.parent)
            made = nbformat.read(notebook, as_version=4)
            nbformat.validate(made)
            for cell in made.cells:
                cell.source = re.sub(r"epochs: \d\d", "epochs: 2", cell.source)
            made.cells.insert(0, nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {folder}"))
            nbclient.NotebookClient(made, km=kernel, timeout=300).execute()
            shown = [output for cell in made.cells if cell.cell_type == "code" for output in cell.outputs]
            assert any("image/png" in output.get("data", {}) for output in shown), notebook.stem
    finally:
        kernel.shutdown_kernel(now=True)
