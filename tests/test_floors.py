"""The house rule: a file imports from floors below its own or from its own room, never from a neighbour."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openvse.halves import INSTALL, SEARCH, TRAINING
from tests.failures import Failures

PACKAGE = Path(__file__).parent.parent / "src" / "openvse"

# From the ground up; the rooms of one line are neighbours. A floor may have steps inside: a later line of it may use
# the earlier ones. Both halves stand on the same floors. The search half uses its own rooms,
# and the training half uses both.
STEPS: tuple[tuple[int, frozenset[str]], ...] = (
    (0, frozenset({"errors", "types", "kernels"})),
    (0, frozenset({"halves"})),
    (0, frozenset({"registry"})),
    (0, frozenset({"functional", "files", "media", "specs"})),
    (0, frozenset({"lazy"})),
    (0, frozenset({"layers", "output", "pipeline", "scoring", "settings", "tokenization"})),
    (1, frozenset({"backbones", "runtime"})),
    (1, frozenset({"encoders", "aggregators", "objectives"})),
    (1, frozenset({"fusion"})),
    (1, frozenset({"similarities"})),
    (1, frozenset({"assembly", "losses"})),
    (2, frozenset({"model", "corpus"})),
    (2, frozenset({"features"})),
    (2, frozenset({"datasets", "batches"})),
    (3, frozenset({"evaluation"})),
    (4, frozenset({"training", "indexing", "exporting"})),
    (4, frozenset({"stores"})),
    (4, frozenset({"search"})),
    (5, frozenset({"retrieval"})),
    (5, frozenset({"conversion", "teaching"})),
    (6, frozenset({"tasks"})),
    (7, frozenset({"demo", "encoding", "report", "serving"})),
    (8, frozenset({"cli"})),
    (8, frozenset({"train_cli"})),
)
HEIGHT = {room: height for height, (_, rooms) in enumerate(STEPS) for room in rooms}

# The front door hands the public names out lazily, so it may name any room.
FRONT = {"__init__", "__main__"}

# What must not be imported before a command needs it: each costs a second or more.
HEAVY = ("torch", "transformers", "accelerate", "numpy", "PIL", "matplotlib")

# What only `pip install 'openvse[train]'` brings.
OF_TRAINING = {
    *("torch", "transformers", "accelerate", "safetensors", "huggingface_hub", "yaml", "tensorboard"),
    *("onnx", "onnxscript"),
}


def room_of(path: Path, package: Path = PACKAGE) -> str:
    """Return the room of a file: its folder in the package, or its own name where it stands alone."""
    return path.relative_to(package).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    """Return the name by which a file is imported."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def without_training(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python where PyTorch and transformers cannot be imported."""
    blocked = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False)


def imported_rooms(source: str) -> Iterator[str]:
    """Yield the room behind every import of openvse in a source text, wherever it stands in the file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the floor, write openvse.<room>"
            module = node.module or ""
            # `from openvse import data` names the room after the import.
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "openvse" else [module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        rooms = (name.split(".")[1] for name in names if name.startswith("openvse."))
        yield from (room for room in rooms if not room.startswith("__"))


def breaches(room: str, source: str) -> list[str]:
    """Return the rooms that a file of ``room`` imports and must not."""
    return [
        other
        for other in imported_rooms(source)
        if other != room
        and (other not in HEIGHT or HEIGHT[other] >= HEIGHT[room] or (room in SEARCH and other in TRAINING))
    ]


def packages_of_training(source: str) -> list[str]:
    """Return the packages of the training half that a source text imports, wherever it stands in the file."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [name for name in names if name.split(".")[0] in OF_TRAINING]


def sources() -> list[Path]:
    """Return every file of the package but its front door."""
    return sorted(path for path in PACKAGE.rglob("*.py") if room_of(path) not in FRONT)


def test_every_room_has_a_floor() -> None:
    homeless = {room_of(path) for path in sources()} - {*HEIGHT}
    assert homeless == set(), f"new rooms: give them a floor in {Path(__file__).name} and docs/architecture.md"


@pytest.mark.medium
def test_imports_go_down() -> None:
    up = {
        str(path.relative_to(PACKAGE)): rooms
        for path in sources()
        if room_of(path) in HEIGHT and (rooms := breaches(room_of(path), path.read_text()))
    }
    assert up == {}


@pytest.mark.parametrize("beside", ["openvse_engines", "openvse_papers", "openvse_testing"])
def test_a_package_beside_openvse_enters_by_the_door_alone(beside: str) -> None:
    """openvse never imports it, it imports no other such package, and it takes public names."""
    for package in sorted(PACKAGE.parent.iterdir()):
        for path in package.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("openvse"):
                    module, names = str(node.module), [alias.name for alias in node.names]
                elif isinstance(node, ast.Import):
                    module, names = "", [alias.name for alias in node.names]
                else:
                    continue
                of = {each.split(".")[0] for each in (module, *names)}
                assert package.name == beside or beside not in of, f"{path} imports {beside}"
                if package.name == beside:
                    hidden = [each for each in (*module.split("."), *names) if each.startswith("_")]
                    assert [each for each in hidden if each not in ("__version__",)] == [], f"{path}: {hidden}"


def test_a_room_belongs_to_one_half() -> None:
    assert set() == SEARCH & TRAINING
    assert SEARCH | TRAINING == {room_of(path) for path in sources()} == {*HEIGHT}


def test_the_search_half_imports_no_package_of_the_training_half() -> None:
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in sources()
        if room_of(path) in SEARCH and (names := packages_of_training(path.read_text()))
    }
    assert found == {}


@pytest.mark.medium
def test_the_search_half_imports_where_the_training_half_is_missing() -> None:
    names = [module_of(path) for path in sources() if room_of(path) in SEARCH]
    code = f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)\n"
    code += f"print({OF_TRAINING!r} & {{name for name, module in sys.modules.items() if module}})"
    done = without_training(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "set()\n", "")


@pytest.mark.parametrize(
    "code",
    [
        "import openvse; openvse.train",
        "import openvse; openvse.losses",
        "from openvse.losses import adopt",
        "import openvse.aggregators.gpo",
    ],
)
def test_a_name_of_the_training_half_says_how_to_install_it(code: str) -> None:
    done = without_training(code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("openvse.errors.MissingHalfError")
    assert INSTALL in done.stderr.splitlines()[-1]


def test_the_ground_imports_nothing_of_ours() -> None:
    for name in ("errors", "types"):
        assert list(imported_rooms((PACKAGE / f"{name}.py").read_text())) == []


def test_every_room_stands_on_one_floor() -> None:
    floors = [floor for floor, _ in STEPS]
    assert floors == sorted(floors)
    assert sum(len(rooms) for _, rooms in STEPS) == len(HEIGHT)


def test_the_checker_sees_every_kind_of_import() -> None:
    failures = Failures()
    for room, source, expected in [
        ("aggregators", "from openvse.types import Features", []),
        ("aggregators", "from openvse.aggregators.simple import Pooling", []),
        ("aggregators", "from openvse.encoders import Encoder", ["encoders"]),
        ("aggregators", "import openvse.model.two_tower", ["model"]),
        ("aggregators", "def late():\n    from openvse.training import fit", ["training"]),
        ("aggregators", "from openvse import evaluation, types", ["evaluation"]),
        ("types", "from openvse.functional import normalize", ["functional"]),
        ("functional", "from openvse.types import Inputs", []),
        ("assembly", "from openvse.specs import Part", []),
        ("specs", "from openvse.assembly import build_part", ["assembly"]),
        ("training", "from openvse.search import Index", ["search"]),
        ("cli", "from openvse.nowhere import thing", ["nowhere"]),
        ("cli", "import torch\nfrom rich import print", []),
        ("cli", "from openvse import __version__", []),
        ("search", "def late():\n    from openvse.types import Inputs", ["types"]),
        ("train_cli", "from openvse.cli.app import app", []),
        ("retrieval", "from openvse.search.query import Query", []),
    ]:
        with failures.of(room, source, expected):
            assert breaches(room, source) == expected
    assert not failures, failures


def test_relative_imports_are_refused() -> None:
    with pytest.raises(AssertionError, match="relative"):
        list(imported_rooms("from .base import Pooling"))


def test_a_search_does_not_load_what_makes_an_index() -> None:
    code = "import sys, openvse.search.opening, openvse.search.engine\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    makers = {f"openvse.indexing.{name}" for name in ("build", "embedding", "scanning", "writer")}
    assert not makers & {*loaded} and "openvse.indexing.index" in loaded


@pytest.mark.parametrize("module", ["openvse", "openvse.cli.app"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.medium
def test_every_module_imports_without_writing_or_speaking(tmp_path: Path) -> None:
    names = [module_of(path) for path in sources()]
    code = f"import importlib, sys\nsys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    code += f"for name in {names!r}:\n    importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(tmp_path.iterdir()) == []
