"""The README's commands, read from it and run one after the other in an empty folder with drawn photos.

``python -I tests/distribution/readme_commands.py FOLDER WHEEL``, by the Python of an empty environment, installs what
the README says, the wheel in place of the checkout, and goes on with the rest. Without arguments it looks only at where
openvse and its recipes come from. A command that is none of the known ones is an error.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_RUN = ("git clone ", "cd ", "make demo", "python -m venv ", "python3 -m venv ", ". .venv/")
"""What the reader types before anything is installed, and the demo, which has a test of its own."""

PRINTED = {
    "check": r"\S",
    "train": r"(?m)^runs/\S+/best$",
    "evaluate": r"(?s)# Retrieval on photos/test.*chance",
    "index": r"20 images",
    "search": r"(?s)(\d{4}\.jpg.*){5}",
}
"""What the commands print that the README has to show, by their names."""

COLOURS = {
    "red": (210, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 70, 200),
    "yellow": (230, 210, 50),
    "grey": (120, 120, 120),
}
SHAPES = {
    "circle": lambda pen, colour: pen.ellipse((20, 20, 76, 76), fill=colour),
    "square": lambda pen, colour: pen.rectangle((20, 20, 76, 76), fill=colour),
    "bar": lambda pen, colour: pen.rectangle((8, 40, 88, 56), fill=colour),
    "dog": lambda pen, colour: pen.polygon([(16, 80), (48, 16), (80, 80)], fill=colour),
}


def blocks(page: str) -> list[tuple[str, str]]:
    """Return language and text of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)


def commands(block: str) -> Iterator[list[str]]:
    """Yield the words of each command of a block of shell; refuse what is more than commands joined by ``&&``."""
    for line in block.replace("\\\n", " ").splitlines():
        for command in line.split("&&"):
            words = shlex.split(command, comments=True)
            assert not {*words} & {"|", ">", ">>", "<", ";", "&"}, f"no plain command: {line}"
            if words and not command.strip().startswith(NOT_RUN):
                yield words


def draw_photos(folder: Path, lines: str) -> None:
    """Write an image for each colour and shape, and ``metadata.jsonl`` in the shape of a block of JSON lines."""
    from PIL import Image, ImageDraw

    shown = [json.loads(line) for line in lines.splitlines()]
    assert all(row.keys() == {"file_name", "captions"} for row in shown), f"other keys than drawn: {lines}"
    folder.mkdir()
    drawn = []
    for number, ((colour, value), (shape, draw)) in enumerate(product(COLOURS.items(), SHAPES.items()), start=1):
        image = Image.new("RGB", (96, 96), (245, 240 - 3 * number, 225))
        draw(ImageDraw.Draw(image), value)
        name = f"{number:04d}.jpg"
        image.save(folder / name)
        drawn.append({"file_name": name, "captions": [f"A {colour} {shape} on a beach.", f"The {shape} is {colour}"]})
    rows = {row["file_name"]: row for row in [*drawn, *shown]}
    assert len(rows) == len(drawn), f"no image is drawn for a line of {lines}"
    (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows.values()))


def check_install(words: list[str]) -> None:
    """Make sure that a line installs tested versions, and nothing that is not there."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[:4] == ["pip", "install", "--constraint", "constraints.txt"], shlex.join(words)
    for word in words[4:]:
        wanted = re.fullmatch(r"\.(?:\[([\w,-]+)\])?", word)
        assert word in pins or wanted, f"{word} is neither a pinned version nor this checkout"
        assert wanted is None or {*(wanted[1] or "").split(",")} - {""} <= extras.keys(), word


class Walk:
    """Runs the README's blocks in a folder, by the programs of the running Python's environment.

    Args:
        folder: empty.
        wheel: what is installed in place of the checkout.
    """

    def __init__(self, folder: Path, wheel: Path | None = None) -> None:
        assert not any(folder.iterdir()), f"{folder} is not empty"
        self.folder, self.wheel, self.ran = folder, wheel, set()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def take(self, page: str) -> None:
        """Run all blocks; fail unless the page trains, evaluates, indexes, searches, serves and shows Python."""
        shown = blocks(page)
        lines = [block for language, block in shown if language == "json"]
        draw_photos(self.folder / "photos", "".join(lines))  # a search comes before their captions
        for language, block in shown:
            if language == "python":
                self.python(block)
                self.ran.add("python")
            elif language == "bash":
                for words in commands(block):
                    self.command(words)
            elif language != "json":
                raise AssertionError(f"a block of {language} is not known")
        wanted = {"pip", "python", "train", "evaluate", "index", "search", "serve"}
        assert wanted <= self.ran, f"the README does not show {wanted - self.ran}"
        assert (self.folder / "hits.html").read_text().count("<img") >= 5

    def command(self, words: list[str]) -> None:
        """Run a command and look at what it prints."""
        print(f"$ {shlex.join(words)}", flush=True)
        if words[0] == "pip":
            check_install(words)
            self.pip(words)
            self.ran.add("pip")
            return
        name = "".join(words[2:3] if words[1:2] == ["data"] else words[1:2])
        assert words[0] == "openvse" and name in {*PRINTED, "serve"}, f"not known: {shlex.join(words)}"
        if name == "serve":
            self.serve(words)
        else:
            printed = self.openvse(words)
            assert re.search(PRINTED[name], printed), f"{shlex.join(words)} printed {printed!r}"
        self.ran.add(name)

    def pip(self, words: list[str]) -> None:
        """Install, the wheel in place of the checkout."""
        words = [re.sub(r"^\.(?=\[|$)", str(self.wheel), word) for word in words]
        subprocess.run([sys.executable, "-m", *words, "--quiet"], cwd=ROOT, env=self.environment, check=True)
        importlib.invalidate_caches()

    def openvse(self, words: list[str]) -> str:
        """Run a command of openvse to its end, and return its standard output."""
        done = subprocess.run(
            [self.program, *words[1:]],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(done.stdout, flush=True)
        return done.stdout

    def python(self, code: str) -> None:
        """Run lines of Python."""
        subprocess.run([sys.executable, "-I", "-c", code], cwd=self.folder, env=self.environment, check=True)

    def serve(self, words: list[str]) -> None:
        """Start the server on a free port, ask it for its page and for hits, and stop it as Ctrl-C does."""
        command = [self.program, *words[1:], "--port", "0"]
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                url = next(found[1] for line in process.stderr if (found := re.search(r" at (http://\S+/)", line)))
                page = urllib.request.urlopen(url, timeout=60).read()
                asked = f"{url}api/search?q=a%20dog%20on%20a%20beach&top_k=5"
                hits = json.load(urllib.request.urlopen(asked, timeout=60))["hits"]
            finally:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                process.kill()
        assert b"<html" in page and len(hits) == 5 and process.returncode == 0, process.returncode

    @property
    def program(self) -> str:
        """The command ``openvse`` of the environment."""
        return str(Path(sys.executable).with_name("openvse"))


def check_origin() -> None:
    """Make sure that openvse and its recipes are the environment's own, not a checkout's."""
    import openvse

    package = Path(openvse.__file__).parent
    assert package.is_relative_to(sys.prefix), f"openvse is imported from {package}"
    assert [Path(place) for place in openvse.__path__] == [package]
    assert (package / "recipes" / "vse_infinity" / "rows.yaml").is_file(), "the wheel lacks its recipes"
    assert (package / "py.typed").is_file()
    program = Path(sys.executable).with_name("openvse")
    listed = subprocess.run([program, "list", "recipes"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "folder" in listed.split()


if __name__ == "__main__":
    if sys.argv[1:]:
        Walk(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()).take((ROOT / "README.md").read_text())
    check_origin()
