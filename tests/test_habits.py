"""What contributors type, what CI runs and what the documents say about both are the same."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):(?! export)", MAKEFILE, flags=re.MULTILINE))
JOB = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["make"]


def test_ci_runs_what_a_contributor_types() -> None:
    assert [step["run"] for step in JOB["steps"] if "run" in step] == ["make ${{ matrix.target }}"]
    matrix = JOB["strategy"]["matrix"]
    targets = {*matrix["target"], *(each["target"] for each in matrix["include"])}
    assert targets == {"lint", "test", "wheel-check", "demo"} <= TARGETS


def test_ci_runs_the_oldest_python_that_is_promised() -> None:
    oldest, *newer = JOB["strategy"]["matrix"]["python"]
    assert PROJECT["project"]["requires-python"] == f">={oldest}"
    assert len(newer) == 1 and f"Python {oldest} to {newer[0]}" in (ROOT / "CONTRIBUTING.md").read_text()


def test_actions_are_pinned() -> None:
    used = [step["uses"] for step in JOB["steps"] if "uses" in step]
    assert used and [name for name in used if not re.search(r"@v\d+\.\d+\.\d+$", name)] == []


def test_a_submission_is_linted_and_tested() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make ")] == ["make lint </dev/null", "make test </dev/null"]


def test_targets_that_documents_name_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    code = "\n".join(line for page in pages for line in re.findall(r"`+(?:bash\n)?([^`]+)", page.read_text()))
    named = set(re.findall(r"^make ([a-z-]+)", code, flags=re.MULTILINE))
    assert {"check", "test", "test-fast", "wheel-check"} <= named <= TARGETS


def test_the_makefile_selects_by_markers_that_exist() -> None:
    """Pytest itself takes any word after ``-m``."""
    markers = {line.split(":")[0] for line in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    chosen = re.findall(r'-m "(.*?)"', MAKEFILE)
    assert chosen == ["not slow and not medium", "not slow"]
    assert {word for words in chosen for word in words.split()} - {"not", "and"} == markers


@pytest.mark.medium
def test_all_that_is_installed_has_its_version_in_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.split("==")[0]) for line in lines if "==" in line}
    table = PROJECT["project"]
    extras = [line for lines in table["optional-dependencies"].values() for line in lines]
    waiting = [Requirement(line) for line in (*table["dependencies"], *extras)]
    seen: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if wanted.name == "openvse" or f"{wanted.name}[{wanted.extras}]" in seen:
            continue
        seen.add(f"{wanted.name}[{wanted.extras}]")
        assert canonicalize_name(wanted.name) in pinned, f"{wanted.name} has no version in constraints.txt"
        waiting += needed_by(wanted)


def needed_by(wanted: Requirement) -> list[Requirement]:
    """Return what an installed package needs here; nothing if it is not installed."""
    try:
        lines = [Requirement(line) for line in requires(wanted.name) or []]
    except PackageNotFoundError:
        return []
    places = [{"extra": extra} for extra in ("", *wanted.extras)]
    return [line for line in lines if line.marker is None or any(line.marker.evaluate(place) for place in places)]
