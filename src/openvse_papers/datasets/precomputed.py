"""The precomputed layout of SCAN and VSE-infinity: region features as arrays, captions as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus, in_order
from openvse.datasets.layout import first_file, reading_json
from openvse.datasets.rows import table_lines
from openvse.errors import DataError
from openvse.features.arrays import ArrayFeatures, ArrayPart, ArrayRows
from openvse_papers.datasets.layout import first_folder, published

_SPLITS = {"train": ("train",), "validation": ("dev", "val"), "test": ("testall", "test")}
"""The prefixes of the files of a split. The first that exists is used."""

FOLDERS = ("", "precomp/")
"""The possible folders of the files under the root."""

IMAGES, CAPTIONS, IDS = "_ims.npy", "_caps.txt", "_ids.txt"
"""The suffixes of the files of a split."""

MAPPING = "id_mapping.json"
_IMAGE_FOLDERS = ("images/", "flickr30k-images/")


PRECOMPUTED = published("precomputed")


def open_precomputed(root: Path, *, require_images: bool = True) -> Corpus:
    """Open features in the layout of SCAN and VSE-infinity, with their captions.

    ``{split}_ims.npy`` holds ``[n, N, C]``, usually ``[n, 36, 2048]``. ``{split}_caps.txt`` has one caption per line,
    with the captions of an image in sequence. An image has one row, or as many equal rows as captions. This is
    detected, and it is encoded once. The splits are train, dev (or val) and test. COCO's testall, whose first thousand
    images are test, takes precedence over test.

    ``{split}_ids.txt`` may name the images, with a line for each image, row or caption, and ``id_mapping.json`` may
    give their file names (``{"391895": "val2014/COCO_val2014_000000391895.jpg"}``). Then the identifiers are equal to
    the data set's other forms, so that its stores fit. The arrays may be in a folder ``precomp`` of the root, as in
    VSE-infinity's data. Image files, if there are any, are expected in ``images/`` or ``flickr30k-images/``.
    ``require_images`` has no effect.

    The features belong to the corpus: a model with the encoder ``precomputed`` reads them unless there is a store.
    """
    if (folder := find_folder(root)) is None:
        raise DataError(
            f"{root}: no train_ims.npy with train_caps.txt (or dev_, test_) there or in precomp/; "
            "see openvse list data precomputed"
        )
    names = _file_names(folder)
    parts = [_open_part(folder, split, file, names) for split, file in _splits_of(folder)]
    base = folder.parent if folder.name == "precomp" else folder
    images = first_folder(base, _IMAGE_FOLDERS) or base / _IMAGE_FOLDERS[0]
    path_of = {Path(path).name: path for path in names.values()}
    records = [
        Record(item, images / path_of.get(item, item), captions, part.split)
        for part, owned in parts
        for item, captions in zip(part.ids, owned, strict=True)
    ]
    records = in_order(records, only_training=True)
    corpus = build_corpus(root.resolve().name, records, require_images=False)
    return replace(corpus, features=ArrayFeatures([part for part, _ in parts]))


def find_folder(root: Path) -> Path | None:
    """Return the folder of the files of this layout: the root, ``precomp`` in it, or None."""
    return next((folder for folder in (root / name for name in FOLDERS) if any(_splits_of(folder))), None)


def _splits_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the splits of a folder, with the prefixes of their files."""
    for split, names in _SPLITS.items():
        for name in names:
            if (folder / f"{name}{IMAGES}").is_file() or (folder / f"{name}{CAPTIONS}").is_file():
                yield split, name
                break


def _open_part(
    folder: Path, split: str, file: str, names: dict[str, str]
) -> tuple[ArrayPart, tuple[Sequence[str], ...]]:
    """Return features and captions of one split. Raise DataError if a file is missing, or the counts differ."""
    rows = ArrayRows(folder / f"{file}{IMAGES}")
    captions = _lines(folder / f"{file}{CAPTIONS}")
    # Rows can only be repeated if there is one for each caption.
    repeats = rows.repeats() if len(rows) == len(captions) else 1
    num_images = len(rows) // repeats
    each, rest = divmod(len(captions), num_images or 1)
    if rest or not each or not num_images:
        raise DataError(
            f"{folder}: {file}{IMAGES} has {len(rows)} rows ({num_images} images) and {file}{CAPTIONS} {len(captions)} "
            "captions, which is not the same number for each image: download both again"
        )
    ids_file = folder / f"{file}{IDS}"
    if ids_file.is_file():
        ids = _one_each(ids_file, _lines(ids_file), num_images)
    else:
        ids = [f"{split}/{number:06d}" for number in range(num_images)]
    named = tuple(Path(names[item]).name if item in names else item for item in ids)
    twice = next((item for item, count in Counter(named).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{ids_file}: {twice!r} is listed twice, for different rows: download the file again")
    owned = tuple(captions[number * each : (number + 1) * each] for number in range(num_images))
    return ArrayPart(split, rows, named, repeats), owned


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, including empty ones in the middle, so that the others keep their positions."""
    lines = table_lines(path)
    return lines[:-1] if lines and not lines[-1].strip() else lines


def _one_each(path: Path, lines: Sequence[str], num_images: int) -> list[str]:
    """Return the identifier of each image from a list with a line for each image, row or caption."""
    step, rest = divmod(len(lines), num_images)
    if rest or not step:
        raise DataError(
            f"{path}: {len(lines)} lines for {num_images} images: give a line for each image, row or caption"
        )
    ids = [line.strip() for line in lines]
    chosen = ids[::step]
    for start, item in zip(range(0, len(ids), step), chosen, strict=True):
        if not item or any(other != item for other in ids[start : start + step]):
            raise DataError(
                f"{path}, line {start + 1}: {step} lines from here should name one image, and hold "
                f"{sorted(set(ids[start : start + step]))}: download the file again"
            )
    return chosen


def _file_names(folder: Path) -> dict[str, str]:
    """Return the file name of each identifier that a mapping contains."""
    places = (MAPPING, f"../{MAPPING}") if folder.name == "precomp" else (MAPPING,)
    if (path := first_file(folder, places)) is None:
        return {}
    with reading_json(path, 'the form {"391895": "a.jpg"}') as names:
        return {str(key): Path(value).as_posix() for key, value in names.items()}
