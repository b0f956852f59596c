"""Queries of the command line: sentences, images by their paths, and items of an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openvse.errors import OpenVSEError
from openvse.files import whole_characters
from openvse.media.names import names_image


@dataclass(frozen=True)
class Asked:
    """A sentence, an image or an item of the index. ``text`` is the sentence, the path as typed, or the id."""

    text: str
    image: Path | None = None
    is_item: bool = False

    @property
    def kind(self) -> str:
        """``image``, ``item`` or ``text``."""
        return "item" if self.is_item else "text" if self.image is None else "image"

    @property
    def title(self) -> str:
        """The query, for people."""
        return self.text if self.kind == "text" else f"images like {self.text}"


def asked_image(path: str | Path) -> Asked:
    """Return an image to search for. Raise OpenVSEError if there is no such file."""
    try:
        is_file, exists = Path(path).is_file(), Path(path).exists()
    except OSError:  # a name that no file can have
        is_file = exists = False
    if exists and not is_file:
        raise OpenVSEError(f"{path}: this is no ordinary file: give the path of an image or a clip")
    if not exists:
        raise OpenVSEError(
            f"{path}: this image does not exist: check the path, or for a sentence end it unlike a file name"
        )
    return Asked(str(path), Path(path))


def read_queries(words: Sequence[str], like: Sequence[str], ids: Sequence[str]) -> list[Asked]:
    """Distinguish sentences from images, and in ``like`` items of an index from images, with any ending."""
    asked = [asked_image(word) if names_image(word) else Asked(whole_characters(word)) for word in words]
    known = set(ids) if like else set()
    for word in like:
        if word in known:
            asked.append(Asked(word, is_item=True))
        elif Path(word).is_file():
            asked.append(Asked(word, Path(word)))
        else:
            raise OpenVSEError(
                f"--like {word}: the index holds no item of this id, and there is no such file: give the path of an "
                f"image, or its path below the indexed folder"
            )
    if not asked:
        raise OpenVSEError("there is no query: give a sentence, the path of an image, or --like IMAGE")
    return asked
