"""The README's commands for images of one's own, run by the openvse that the running Python has installed.

``python -I tests/distribution/own_folder.py FOLDER`` draws captioned images into the empty folder, runs the commands
there with a shorter training, and fails unless openvse and its recipes come from that Python's own environment, which
is all that it looks at without a FOLDER.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

from PIL import Image, ImageDraw

import openvse

README = Path(__file__).parents[2] / "README.md"
SHORTER = "image.encoder.image_size=64 'training.phases=[{epochs: 2}]' training.batch_size=8"
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


def draw_album(folder: Path) -> None:
    """Write an image for each colour and shape, and ``metadata.jsonl`` with two captions for each."""
    folder.mkdir()
    lines = []
    for (colour, value), (shape, draw) in product(COLOURS.items(), SHAPES.items()):
        image = Image.new("RGB", (96, 96), (245, 240, 225))
        draw(ImageDraw.Draw(image), value)
        name = f"{colour}_{shape}.jpg"
        image.save(folder / name)
        captions = [f"A {colour} {shape} on a beach.", f"The {shape} is {colour}"]
        lines.append(json.dumps({"file_name": name, "captions": captions}))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")


def readme_commands() -> list[str]:
    """Return the README's lines that check, train, evaluate, index and search, the training made shorter."""
    blocks = re.findall(r"```bash\n(.*?)```", README.read_text(), flags=re.DOTALL)
    (block,) = (block for block in blocks if "openvse train folder data.source=photos" in block)
    commands = [line.split("  #")[0].strip() for line in block.splitlines()]
    check, train, *others, _serve = commands
    assert [command.split()[1] for command in others] == ["evaluate", "index", "search"]
    return [check, f"{train} {SHORTER}", *others]


def run(command: str, folder: Path) -> str:
    """Run a line of shell in a folder with the running Python's programs, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    print(f"$ {command}", flush=True)
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    print(done.stdout, flush=True)
    return done.stdout


def check_origin() -> None:
    """Make sure that openvse and its recipes are the environment's own, not a checkout's."""
    package = Path(openvse.__file__).parent
    assert package.is_relative_to(sys.prefix), f"openvse is imported from {package}"
    assert [Path(place) for place in openvse.__path__] == [package]
    assert (package / "recipes" / "vse_infinity" / "folder_cpu.yaml").is_file(), "the wheel lacks its recipes"
    assert (package / "py.typed").is_file()
    assert "folder" in run("openvse recipes", Path.cwd()).split()


def main(folder: Path) -> None:
    """Take the README's way in an empty folder."""
    assert not any(folder.iterdir()), f"{folder} is not empty"
    draw_album(folder / "photos")
    _checked, trained, evaluated, _indexed, found = (run(command, folder) for command in readme_commands())
    assert trained.strip() == "runs/mine/best" and (folder / "runs/mine/best/model.safetensors").is_file()
    assert "# Retrieval on photos/test" in evaluated and "chance" in evaluated
    assert len(re.findall(r"\w+_(?:circle|square|bar|dog)\.jpg", found)) >= 5
    assert (folder / "hits.html").read_text().count("<img") >= 5


if __name__ == "__main__":
    check_origin()
    if sys.argv[1:]:
        main(Path(sys.argv[1]).resolve())
