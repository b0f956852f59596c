"""What an error of another library says, in one line of a message."""

from __future__ import annotations

import importlib.metadata
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from openvse.cli.progress import copyable
from openvse.errors import OpenVSEError, install, message_of


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("one\n  two\x1b[31m red\x1b[0m", "one two red"),
        ("", "ValueError"),
        ("a word " * 9, "a word a word a ..."),
        ("https://huggingface.co/a/very/long", "https://huggingf ..."),
        ("exactly twenty chars", "exactly twenty chars"),
    ],
)
def test_a_long_reason_is_cut_between_words(said: str, shown: str) -> None:
    assert message_of(ValueError(said), 20) == shown


def test_the_packages_of_an_extra_are_those_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    for extra in ("map", "glove", "ray"):
        packages = [Requirement(each) for each in project["optional-dependencies"][extra]]
        packages = [each for each in packages if each.name != "openvse"]
        _, _, *named = shlex.split(install(extra))
        assert {Requirement(each).name for each in named} == {each.name for each in packages}


def test_an_extra_without_metadata_is_installed_in_a_clone(monkeypatch) -> None:
    def nothing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", nothing)
    assert "'.[ray]'" in install("ray")


def test_options_of_a_message_are_arguments_in_python() -> None:
    """The command line prints the options alone. A command is there to copy, and is not changed."""
    for line, told in (
        ("use --resume, or another --out", "use --resume (in Python: resume=True), or another --out"),
        ("allow it: --allow-outside", "allow it: --allow-outside (in Python: allow_outside=True)"),
        ("run 'openvse index --overwrite'", "run 'openvse index --overwrite'"),
        ("run: openvse train 'a b' --resume", "run: openvse train 'a b' --resume"),
    ):
        error = OpenVSEError(line)
        assert (str(error), copyable(str(error))) == (told, line)
        assert str(OpenVSEError(f"x: {error}")) == f"x: {told}"
