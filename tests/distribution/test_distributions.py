"""The wheel and the sdist: what they hold, that they are the same each time, and that the wheel alone is enough."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import openvse

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def build(source: Path, *kinds: str) -> Path:
    """Build into ``dist`` of a source folder, at the time of ``make wheel`` when it runs on one commit."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-m", "hatchling", "build", *kinds]
    subprocess.run(command, cwd=source, env=environment, capture_output=True, check=True)
    return source / "dist"


@pytest.fixture(scope="module")
def builds(tmp_path_factory) -> tuple[Path, Path]:
    """Build two copies of what git tracks, which differ in place, time and permissions of their files."""
    dists = []
    for second in (False, True):
        source = tmp_path_factory.mktemp("source")
        for name in tracked_files():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
            if second:
                os.utime(target, (1_000_000_000, 1_000_000_000))
                target.chmod(0o600)
        dists.append(build(source))
    return dists[0], dists[1]


@pytest.fixture(scope="module")
def wheel(builds: tuple[Path, Path]) -> Path:
    (path,) = builds[0].glob("*.whl")
    return path


def test_two_builds_are_equal_to_the_byte(builds: tuple[Path, Path]) -> None:
    first, second = ({path.name: path.read_bytes() for path in dist.iterdir()} for dist in builds)
    assert sorted(Path(name).suffix for name in first) == [".gz", ".whl"]
    assert first == second


def test_the_sdist_holds_all_that_git_tracks_and_builds_the_same_wheel(
    builds: tuple[Path, Path], wheel: Path, tmp_path: Path
) -> None:
    (sdist,) = builds[0].glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert names == {*tracked_files(), "PKG-INFO"}
    assert {"recipes/vse_infinity/rows.yaml", "src/openvse/py.typed", "constraints.txt"} <= names
    (source,) = tmp_path.iterdir()
    (again,) = build(source, "-t", "wheel").glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_the_version_has_one_place(builds: tuple[Path, Path]) -> None:
    (wheel,) = builds[0].glob("*.whl")
    assert wheel.name.startswith(f"openvse-{openvse.__version__}-")
    assert f"\nversion: {openvse.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {openvse.__version__} (" in (ROOT / "CHANGELOG.md").read_text()


def test_the_wheel_holds_the_package_its_recipes_and_its_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = {name.split("/licenses/")[1] for name in archive.namelist() if "/licenses/" in name}
    code = {name.removeprefix("src/") for name in tracked_files() if name.startswith("src/")}
    recipes = {f"openvse/{name}" for name in tracked_files() if name.startswith("recipes/")}
    assert names == code | recipes
    openmoji = "openvse/datasets/openmoji"
    notices = {f"{openmoji}/LICENSE-{owner}" for owner in ("OPENMOJI", "UNICODE")}
    assert notices | {f"{openmoji}/annotations_en.json", "openvse/py.typed"} <= names
    words = {"openvse/retrieval/imagenet_names.txt", "openvse/retrieval/LICENSE-WORDNET"}
    assert words <= names
    assert licences == {"LICENSE", *(f"src/{notice}" for notice in notices), "src/openvse/retrieval/LICENSE-WORDNET"}


def test_the_wheel_alone_is_enough(wheel: Path, tmp_path: Path) -> None:
    """In an environment that sees the dependencies installed here, but not this checkout.

    ``make wheel-check`` takes the whole way of the README in one that sees nothing.
    """
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    # What .pth files here add to the path, such as the checkout's src, does not come along.
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    script = Path(__file__).with_name("readme_commands.py")
    subprocess.run([python, "-I", str(script)], cwd=tmp_path, check=True)
