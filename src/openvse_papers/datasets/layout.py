"""The formats of published data sets: their facts, the places of their files, and lists of their splits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path

from openvse.corpus.corpus import Record
from openvse.corpus.facts import Facts, Form, Piece
from openvse.datasets.layout import first_file, reading_json
from openvse.datasets.rows import table_lines
from openvse.errors import DataError
from openvse.specs.load import parse_yaml

_PUBLISHED = parse_yaml(
    resources.files("openvse_papers.datasets").joinpath("facts.yaml").read_text(encoding="utf-8")
)


def published(name: str) -> Facts:
    """Return the facts of a published data set, which ``facts.yaml`` lists."""
    fields = dict(_PUBLISHED[name])
    pieces = tuple(Piece(**{**each, "paths": tuple(each["paths"])}) for each in fields.pop("pieces"))
    forms = []
    for each in fields.pop("forms", ()):
        ends = {split: tuple(names) for split, names in each.get("ends", {}).items()}
        forms.append(Form(**{**each, "splits": tuple(each["splits"]), "ends": ends}))
    return Facts(name, pieces=pieces, forms=tuple(forms), **fields)


def first_folder(root: Path, names: Iterable[str]) -> Path | None:
    """Return the first of some paths under the root that is a folder."""
    return next((root / name for name in names if (root / name).is_dir()), None)


def require_file(facts: Facts, root: Path, what: str) -> Path:
    """Return the file of a piece of a published data set. Raise DataError if there is none."""
    names = facts.places(what)
    if (path := first_file(root, names)) is None:
        raise DataError(f"{root}: no {' or '.join(names)}: get the captions of {facts.name} from its owners")
    return path


def read_splits(root: Path, lists: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return the splits of each name in some lists. Of a list's possible paths, the first that exists is read."""
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for split, names in lists.items():
        path = first_file(root, names)
        for number, line in enumerate(table_lines(path) if path else (), start=1):
            if "\t" in line.strip():
                raise DataError(f"{path}, line {number}: several columns between tabs: write one name a line")
            if line.strip():
                splits[line.strip()].add(split)
    return splits


def read_karpathy(path: Path, folder_of: Callable[[str], Path]) -> Iterator[Record]:
    """Yield a record for each image, with the raw sentences and not their tokens.

    Format: ``{"images": [{"filename", "filepath", "split", "sentences": [{"raw"}]}]}`` (Karpathy and Fei-Fei, CVPR
    2015). Only COCO has ``filepath``, the folder of the image.
    """
    with reading_json(path, "Karpathy's format") as tree:
        entries = tree["images"]
        folders = {name: folder_of(name) for name in {entry.get("filepath", "") for entry in entries}}
        for entry in entries:
            sentences = [sentence["raw"] for sentence in entry["sentences"]]
            file = folders[entry.get("filepath", "")] / entry["filename"]
            yield Record(entry["filename"], file, sentences, entry["split"])
