"""How well models of own folders find held-out images, by the number of captioned images to learn from.

python studies/own_folder.py flickr8k:FOLDER --sizes 20 100 --settings "vse_infinity/folder_cpu" --out rows.csv

Folders of each size are drawn from the training images of a data set. In each, every setting is trained with every seed
by the command line, as a user would train it, and measured on the test images of the data set, which are the same for
all. A setting is a recipe and overrides, as ``openvse train`` takes them. A run that is in the CSV file already is not
made again. A folder of 0 captioned images holds the test images without their captions. ``hubs_out`` is the RSUM of an
index that takes hubs out, if the model keeps a bank.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _commands import append_row, openvse, read_rows, validations
from openvse.corpus import Corpus
from openvse.datasets import open_corpus

COLUMNS = ("source", "size", "setting", "seed", "validation_rsum", "test_rsum", "i2t_r1", "t2i_r1", "minutes")
HUBS_OUT = (*COLUMNS, "hubs_out")
METADATA = "metadata.jsonl"
VALIDATION_SHARE = 0.15
LEAST_VALIDATION = 5


@dataclass(frozen=True)
class Case:
    """One training: how many images, by what, from which seed."""

    size: int
    setting: str
    seed: int


def main(arguments: Sequence[str]) -> None:
    """Make the runs that the command line asks for and the CSV file lacks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("source", help="a data set with the splits train and test, such as flickr8k:FOLDER")
    parser.add_argument("--store", type=Path, help="feature store of all images of the source")
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 100, 800, 5000])
    parser.add_argument("--settings", nargs="+", default=["vse_infinity/folder_cpu"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split", default="test", help="the images to measure on: test, or validation to choose by")
    parser.add_argument("--test", type=int, default=1000, help="test images, at most")
    parser.add_argument(
        "--captions", type=int, help="captions of an image to learn from, at most; all of them if absent"
    )
    parser.add_argument("--out", type=Path, required=True, help="CSV file that gets a row for each run")
    options = parser.parse_args(arguments)
    corpus = open_corpus(options.source)
    if (most := len(corpus.split("train"))) < max(options.sizes):
        parser.error(f"{options.source} has {most} images to learn from, but --sizes asks for {max(options.sizes)}")
    done = {(row["source"], row["size"], row["setting"], row["seed"]) for row in read_rows(options.out)}
    for size in options.sizes:
        for seed in options.seeds:
            for setting in options.settings:
                case = Case(size, setting, seed)
                if (corpus.name, str(size), setting, str(seed)) in done:
                    continue
                with tempfile.TemporaryDirectory() as place:
                    row = _measure(corpus, case, Path(place), options)
                append_row(options.out, HUBS_OUT, row)
                print(" ".join(str(value) for value in row), flush=True)


def _measure(corpus: Corpus, case: Case, place: Path, options: argparse.Namespace) -> tuple[object, ...]:
    folder = place / "images"
    lines = _write_folder(corpus, case, folder, options.test, options.captions, options.split)
    if case.size:
        (folder / METADATA).write_text(lines)
    recipe, *overrides = shlex.split(case.setting)
    features = [f"data.features={options.store.resolve()}"] if options.store else []
    started = time.perf_counter()
    train = ["train", recipe, f"data.source={folder}", *features, *overrides, f"seed={case.seed}"]
    openvse(*train, "training.threads=1", "--out", str(place / "run"))
    minutes = (time.perf_counter() - started) / 60
    (folder / METADATA).write_text(lines)
    stored = ["--features", str(options.store.resolve())] if options.store else []
    openvse("evaluate", str(place / "run/best"), "--on", str(folder), *stored, "--out", str(place / "test"))
    report = json.loads((place / "test/report.json").read_text())
    recall = report["metrics"]
    validation = max(validations(place / "run").values()) if case.size else float("nan")
    hubs_out = ((report.get("hubs_out") or {}).get("metrics") or recall)["rsum"]
    figures = (validation, recall["rsum"], recall["i2t_r1"], recall["t2i_r1"], minutes, hubs_out)
    return (corpus.name, case.size, case.setting, case.seed, *(f"{figure:.2f}" for figure in figures))


def _write_folder(corpus: Corpus, case: Case, folder: Path, num_test: int, captions: int | None, split: str) -> str:
    """Write the images of a folder as a user has it, and return its ``metadata.jsonl`` with captions and splits."""
    chance = random.Random(f"{case.size} {case.seed}")
    train, test = corpus.split("train"), corpus.split(split)
    drawn = chance.sample(range(len(train)), case.size)
    num_validation = max(LEAST_VALIDATION, round(VALIDATION_SHARE * case.size))
    folder.mkdir()
    lines = [
        _line(train, image, folder, "validation" if place < num_validation else "train", captions)
        for place, image in enumerate(drawn)
    ]
    lines += [_line(test, image, folder, "test", None) for image in range(min(num_test, len(test)))]
    return "".join(lines)


def _line(corpus: Corpus, image: int, folder: Path, split: str, captions: int | None) -> str:
    target = folder / corpus.image_ids[image]
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(corpus.image_paths[image].resolve())
    except OSError:  # another file system
        shutil.copyfile(corpus.image_paths[image], target)
    texts = corpus.relevance.texts[corpus.relevance.images == image].tolist()
    sentences = [corpus.captions[text] for text in texts][:captions]
    return json.dumps({"file_name": corpus.image_ids[image], "captions": sentences, "split": split}) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
