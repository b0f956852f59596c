"""The README's commands run as they stand there, here by the commands in this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from readme_commands import ROOT, Walk, check_install, commands
from typer.testing import CliRunner

from openvse.cli.app import app
from tests.naming import names, refusal


class WalkHere(Walk):
    """The same in this process, where openvse is installed and imported; only the server is a process of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environment = {**os.environ}

    def pip(self, words: list[str]) -> None:
        """Install nothing."""

    def openvse(self, words: list[str]) -> str:
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, result.output
        return result.stdout

    def python(self, code: str) -> None:
        exec(code, {})


@pytest.mark.slow
def test_the_commands_of_the_readme(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    WalkHere(tmp_path).take((ROOT / "README.md").read_text())


@pytest.mark.parametrize("line", ["rm -r photos", "openvse explain photos", "curl http://127.0.0.1:8000/", "openvse"])
def test_a_command_that_is_not_known_fails(tmp_path: Path, line: str) -> None:
    (words,) = commands(line)
    assert names(refusal(AssertionError, WalkHere(tmp_path).command, words), "not known")


@pytest.mark.parametrize(
    "wrong",
    [
        "pip install .",
        "pip install --constraint constraints.txt torch==1.0.0",
        "pip install --constraint constraints.txt '.[serv]'",
        "pip install --constraint constraints.txt openvse",
    ],
)
def test_an_installation_that_is_not_tested_is_refused(wrong: str) -> None:
    (words,) = commands(wrong)
    refusal(AssertionError, check_install, words)


def test_commands_are_read_from_a_block() -> None:
    block = "cd openvse && make demo\nopenvse index m photos \\\n  --out i && openvse ask m 'a dog?'  # why\n"
    assert [*commands(block)] == [["openvse", "index", "m", "photos", "--out", "i"], ["openvse", "ask", "m", "a dog?"]]
    with pytest.raises(AssertionError):
        [*commands("openvse search i dog > hits.txt")]
