"""Draw a small data set for the other examples: coloured shapes with a sentence each."""

import json
from itertools import product
from pathlib import Path

from PIL import Image, ImageDraw

COLOURS = ("red", "green", "blue", "orange", "purple", "black")
SHAPES = ("circle", "square", "triangle", "cross")
SIZES = {"small": 30, "large": 70}


def draw(folder: Path) -> tuple[list[Path], list[str]]:
    """Write 48 images and their metadata.jsonl to a folder; return the images and a sentence for each."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, captions = [], []
    for colour, shape, (size, radius) in product(COLOURS, SHAPES, SIZES.items()):
        image = Image.new("RGB", (192, 192), "white")
        _draw(ImageDraw.Draw(image), shape, colour, radius)
        paths.append(folder / f"{size}_{colour}_{shape}.png")
        captions.append(f"a {size} {colour} {shape}")
        image.save(paths[-1])
    lines = [
        json.dumps({"file_name": path.name, "captions": [caption]})
        for path, caption in zip(paths, captions, strict=True)
    ]
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return paths, captions


def _draw(pen: ImageDraw.ImageDraw, shape: str, colour: str, radius: int) -> None:
    low, high, thin = 96 - radius, 96 + radius, radius // 4
    if shape == "circle":
        pen.ellipse((low, low, high, high), fill=colour)
    elif shape == "square":
        pen.rectangle((low, low, high, high), fill=colour)
    elif shape == "triangle":
        pen.polygon([(low, high), (high, high), (96, low)], fill=colour)
    else:
        pen.rectangle((low, 96 - thin, high, 96 + thin), fill=colour)
        pen.rectangle((96 - thin, low, 96 + thin, high), fill=colour)


if __name__ == "__main__":
    print(f"{len(draw(Path('shapes'))[0])} images in the folder shapes")
