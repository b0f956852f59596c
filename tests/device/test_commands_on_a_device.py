"""Every command that has `--device` runs on an emulated one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from openvse.cli.program import app
from tests.cli.album import write_album, write_recipe
from tests.device.emulated_device import Waits, emulated_device

pytestmark = pytest.mark.medium

COMMANDS: dict[str, tuple[str, ...]] = {
    "analyze hits": (
        "analyze",
        "hits",
        "{run}",
        "--on",
        "{album}",
        "--split",
        "validation",
        "--out",
        "{out}",
    ),
    "compare": ("compare", "{run}", "--on", "{album}"),
    "encode": ("encode", "{run}/best", "{album}", "--out", "{out}"),
    "evaluate": ("evaluate", "{run}", "--on", "{album}", "--split", "validation"),
    "evaluate, re-ranked": (
        *("evaluate", "{run}", "--rerank", "{run}", "--on", "{album}", "--split", "validation"),
    ),
    "index": ("index", "{run}/best", "{album}", "--out", "{out}"),
    "search": ("search", "{index}", "a photo", "--model", "{run}/best"),
}


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train and index on the device; return the folders that commands name."""
    root = tmp_path_factory.mktemp("device")
    album = write_album(root / "album")
    recipe = write_recipe(root / "tiny.yaml", album)
    with emulated_device():
        for words in (
            ("train", recipe, "--out", root / "run", "--device", "cuda"),
            ("index", root / "run" / "best", album, "--out", root / "index", "--device", "cuda"),
        ):
            result = invoke(*words)
            assert result.exit_code == 0, result.output
    return {"run": root / "run", "album": album, "index": root / "index"}


@pytest.mark.parametrize("name", COMMANDS)
def test_it_runs(name: str, places: dict[str, Path], tmp_path: Path, waits: Waits) -> None:
    words = [word.format(**places, out=tmp_path / "out") for word in COMMANDS[name]]
    result = invoke(*words, "--device", "cuda")
    assert result.exit_code == 0, result.output
