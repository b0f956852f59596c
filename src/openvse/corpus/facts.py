"""Facts of published data sets: the pieces to download, and the counts of a complete copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Piece:
    """A piece to download.

    Attributes:
        what: the name of the piece in messages: "image files", "captions".
        paths: the places under the root in which the loader looks. The first that exists counts, and the first of all
            is the recommended one. The path of a folder ends with "/". A path may be a pattern, as for ``Path.glob``.
        source: the name, size and known publisher of the download.
        required: False if the data set opens without it. Its absence is then a note and not a fault.
        media: whether it holds the images or videos. The rest can be checked without them.
    """

    what: str
    paths: tuple[str, ...]
    source: str
    required: bool = True
    media: bool = False

    def find(self, root: Path) -> Path | None:
        """Return the first path that exists, or None. A folder without files counts only if nothing else exists."""
        places = [place for path in self.paths for place in _existing(root, path)]
        filled = (place for place in places if place.is_file() or any(map(Path.is_file, place.iterdir())))
        return next(filled, places[0] if places else None)


@dataclass(frozen=True)
class Form:
    """A published form of a data set, with its counts.

    Attributes:
        name: the name of the form, for messages.
        splits: the numbers of items of train, validation and test.
        num_captions: the number of sentences of all items.
        outside: the number of items in no split.
        ends: the first and the last identifier of a split ("" for all items), in the order of their code points.
    """

    name: str
    splits: tuple[int, int, int]
    num_captions: int
    outside: int = 0
    ends: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def num_items(self) -> int:
        """The number of all items."""
        return sum(self.splits) + self.outside


@dataclass(frozen=True)
class Facts:
    """A published data set: the information for its check and its description.

    Attributes:
        name: the registered name in ``DATASETS``.
        title: a description in one line.
        pieces: the pieces to download.
        forms: the counts that a complete copy can have, none for a layout of many data sets.
        licence: the terms, in one line.
        texts: the name of its sentences.
        captions_each: the number of captions per item, or None if they differ.
        shrinks: whether items disappear from their source (videos of the web). Fewer items than published are then a
            note and not a fault.
    """

    name: str
    title: str
    pieces: tuple[Piece, ...]
    forms: tuple[Form, ...]
    licence: str
    items: str = "images"
    texts: str = "captions"
    captions_each: int | None = None
    shrinks: bool = False

    def places(self, what: str) -> tuple[str, ...]:
        """Return the places of a piece, by its name."""
        return next(piece.paths for piece in self.pieces if piece.what == what)

    def describe(self) -> str:
        """Return the downloads, their places, the terms and the counts, in lines for a terminal."""
        lines = [f"{self.name}: {self.title}", "", "Fetch:"]
        for piece in self.pieces:
            lines.append(f"  {piece.what}{'' if piece.required else ' (optional)'}: {piece.source}")
            if len(piece.paths) > 1:
                lines.append(f"    other places that are found: {', '.join(piece.paths[1:])}")
        lines += ["", "Put it there:", *_tree(piece.paths[0] for piece in self.pieces), "", "A complete copy:"]
        for form in self.forms:
            outside = f" and {form.outside:,} in no split" if form.outside else ""
            counts = " / ".join(f"{count:,}" for count in form.splits)
            lines.append(
                f"  {form.name}: {counts} {self.items}{outside} (train / validation / test), "
                f"{form.num_captions:,} {self.texts}"
            )
        lines += ["", f"Terms: {self.licence}", f"Check: openvse data check {self.name}:ROOT"]
        return "\n".join(lines)


def _existing(root: Path, path: str) -> list[Path]:
    """Return an existing path under the root, or for a pattern the first match."""
    if "*" in path:
        return sorted(root.glob(path))[:1]
    return [root / path] if (root / path).exists() else []


def _tree(paths: Iterable[str]) -> list[str]:
    """Draw paths as an indented tree below ``ROOT``."""
    lines = ["  ROOT/"]
    for path in dict.fromkeys(paths):
        *folders, name = path.rstrip("/").split("/")
        for depth, folder in enumerate(folders):
            line = f"  {'  ' * (depth + 1)}{folder}/"
            if line not in lines:
                lines.append(line)
        lines.append(f"  {'  ' * (len(folders) + 1)}{name}{'/' if path.endswith('/') else ''}")
    return lines
