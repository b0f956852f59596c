"""Writes a clip set made of photographs: pans over two photos, one after the other, with captions that name the order.

python studies/photo_clips.py flickr8k:FOLDER --out clips --count 2000
python studies/photo_clips.py flickr8k:FOLDER --out clips_shuffled --count 2000 --shuffled
openvse train hgr/photo_clips_cpu data.source=clips

Each pair of photos gives two clips, "A, then B" and "B, then A", so that only the order of the frames tells them
apart. Photos of one split stay in that split. With ``--shuffled`` the same clips have their frames in random order: a
control, in which no model can know the order. The clips hold the photos, so they belong outside of the repository.

It is a test set for software, with a known answer. It says nothing about videos of the world.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.media.images import read_image

SIDE = 160  # side of a frame in pixels
SHARE = 0.75  # share of the photo's shorter side that a frame shows
FRAMES = 8  # frames of each photo
DURATION = 125  # milliseconds of a frame: 8 a second, as PVSE reads them
SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}


def main(arguments: Sequence[str]) -> None:
    """Write the clips and their metadata."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("source", help="a data set with the splits train, validation and test, such as flickr8k:FOLDER")
    parser.add_argument("--out", type=Path, required=True, help="folder for the clips")
    parser.add_argument("--count", type=int, default=2000, help="number of clips, over all splits")
    parser.add_argument("--shuffled", action="store_true", help="put the frames of each clip in random order")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.out.exists() and any(options.out.iterdir()):
        parser.error(f"{options.out} is not empty: name a new folder")
    corpus = open_corpus(options.source)
    rows = []
    for split, share in SPLITS.items():
        pairs = max(1, round(options.count * share / 2))
        rows += write_split(
            corpus.split(split), split, pairs, options.out, seed=options.seed, shuffled=options.shuffled
        )
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (options.out / "metadata.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(rows)} clips in {options.out}")


def write_split(
    corpus: Corpus, split: str, pairs: int, out: Path, *, seed: int, shuffled: bool
) -> list[dict[str, object]]:
    """Write two clips of each pair of photos; return the rows of their metadata.

    Args:
        corpus: the photos of a split with their captions.
        split: its name.
        pairs: the number of pairs; no photo is in two of them.
        out: the folder for the clips.
        seed: decides pairs, pans and the order of shuffled frames.
        shuffled: whether frames are put in random order.

    Raises:
        SystemExit: the split has too few photos.
    """
    chooser = random.Random(f"{seed}:{split}")
    if 2 * pairs > len(corpus):
        raise SystemExit(f"{split} has {len(corpus)} photos, and {2 * pairs} clips need as many: lower --count")
    chosen = chooser.sample(range(len(corpus)), 2 * pairs)
    captions: dict[int, list[str]] = {}
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        captions.setdefault(image, []).append(corpus.captions[text])
    (out / split).mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for number, (one, other) in enumerate(zip(chosen[::2], chosen[1::2], strict=True)):
        for name, first, second in ((f"{number:05}a", one, other), (f"{number:05}b", other, one)):
            pans = [
                pan(read_image(corpus.image_paths[place]), random.Random(f"{seed}:{split}:{place}"))
                for place in (first, second)
            ]
            frames = [*pans[0], *pans[1]]
            if shuffled:
                random.Random(f"{seed}:{split}:{name}").shuffle(frames)
            path = out / split / f"{name}.webp"
            frames[0].save(path, save_all=True, append_images=frames[1:], duration=DURATION, loop=0, quality=80)
            told = [joined(a, b) for a, b in zip(captions[first], captions[second], strict=False)]
            rows.append({"file_name": f"{split}/{path.name}", "captions": told, "split": split})
    return rows


def pan(photo: Image.Image, chooser: random.Random) -> list[Image.Image]:
    """Move a square window over a photo, from one random place to another."""
    side = max(1, round(SHARE * min(photo.size)))
    room = photo.width - side, photo.height - side
    start, end = ([chooser.random() * each for each in room] for _ in range(2))
    frames = []
    for step in range(FRAMES):
        share = step / (FRAMES - 1)
        left, top = (round(a + share * (b - a)) for a, b in zip(start, end, strict=True))
        frames.append(photo.crop((left, top, left + side, top + side)).resize((SIDE, SIDE)))
    return frames


def joined(first: str, second: str) -> str:
    """Put two captions into one that names the order.

    Examples:
        >>> joined("A dog runs .", "Two men talk .")
        'a dog runs, then two men talk'
    """
    parts = (caption.strip().rstrip(" .") for caption in (first, second))
    return ", then ".join(part[:1].lower() + part[1:] for part in parts)


if __name__ == "__main__":
    main(sys.argv[1:])
