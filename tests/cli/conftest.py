"""The command line in this process, and one run that all its tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from album import write_album, write_recipe
from click.testing import Result
from typer.testing import CliRunner

from openvse.cli.app import app
from tests.naming import names

Invoke = Callable[..., Result]


@pytest.fixture(scope="session")
def invoke() -> Invoke:
    """Return ``invoke("train", path, ...)``: the command line in this process."""

    def run(*words: object) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words])

    return run


@pytest.fixture(scope="session")
def works(invoke: Invoke) -> Invoke:
    """Return ``works("train", path, ...)``, which must end with code 0."""

    def run(*words: object) -> Result:
        result = invoke(*words)
        assert result.exit_code == 0, (words, result.output, result.exception)
        return result

    return run


@pytest.fixture(scope="session")
def result_of(works: Invoke) -> Callable[..., Any]:
    """Return ``result_of("evaluate", ...)``, which returns the result of the JSON that a command prints."""

    def run(*words: object) -> Any:
        return json.loads(works(*words, "--json", "--quiet").stdout)["result"]

    return run


@pytest.fixture
def refused(invoke: Invoke) -> Callable[..., str]:
    """Return ``refused("train", ...)``: it must end with code 2 and one line, which is returned."""

    def run(*words: object) -> str:
        result = invoke(*words)
        assert result.exit_code == 2, result.output
        *before, line = result.stderr.splitlines()
        assert line.startswith("openvse: error: ")
        assert not any("error" in other or "Traceback" in other for other in before), result.stderr
        return line.removeprefix("openvse: error: ")

    return run


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Write an album of one's own."""
    return write_album(tmp_path / "album")


@pytest.fixture
def recipe(tmp_path: Path, album: Path) -> Path:
    """Write the tiny recipe for one's own album."""
    return write_recipe(tmp_path / "tiny.yaml", album)


@pytest.fixture(scope="session")
def other(trained: Path, works: Invoke) -> Path:
    """Train another model of the shared album once; do not write to its run."""
    words = ("seed=1", "embed_dim=8", "training.phases.0.epochs=1", "--out", trained / "other")
    works("train", trained / "tiny.yaml", *words)
    return trained / "other"


@pytest.fixture(scope="session")
def trained(tmp_path_factory, works: Invoke) -> Path:
    """Train once; the folder holds ``album``, ``tiny.yaml``, ``run`` and ``index``. Do not write to it."""
    root = tmp_path_factory.mktemp("trained")
    album = write_album(root / "album")
    result = works("train", write_recipe(root / "tiny.yaml", album), "--out", root / "run")
    assert result.stdout == f"{root / 'run' / 'best'}\n"
    assert names(result.stderr, "2/2", "rsum", 439.3, "rsum", "95 %")
    result = works("index", root / "run" / "best", album, "--out", root / "index")
    assert names(result.stdout, root / "index", 20, 20, 20, 0)
    return root
