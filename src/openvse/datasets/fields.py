"""The names of columns and keys of captions, in all formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openvse.corpus.splits import SPLITS, is_split
from openvse.errors import DataError
from openvse.media.names import escaped

IMAGE_FIELDS = ("file_name", "image", "path", "video")
"""The possible names of the field with the image or clip; if several are present, the first counts."""

CAPTION_FIELDS = ("captions", "caption", "text", "description")
"""The possible names of the field with one or more captions; if several are present, the first counts."""

SPLIT_FIELD = "split"


@dataclass(frozen=True)
class Captioned:
    """The content of an object or row about an image.

    Attributes:
        name: the image, as it was written.
        captions: the captions of the image.
        split: the split, as it was written, or "".
    """

    name: str
    captions: Sequence[str]
    split: str


def read_captioned(entry: Any) -> Captioned:
    """Read an object such as ``{"file_name": "a.jpg", "captions": ["a dog", "it runs"], "split": "train"}``.

    Args:
        entry: the content of a line of JSON.

    Raises:
        DataError: the entry is not an object, lacks the image, or a value has a wrong type; the key is named.
    """
    name = first_field(entry, IMAGE_FIELDS) if isinstance(entry, Mapping) else None
    if name is None:
        found = (
            f"keys {', '.join(map(str, entry)) or 'none'}" if isinstance(entry, Mapping) else kind_of(entry)
        )
        raise DataError(
            'write {"file_name": "a.jpg", "captions": ["a sentence", "another"]}; '
            f"the image may also be called {', '.join(IMAGE_FIELDS[1:])} (found: {found})"
        )
    if not isinstance(entry[name], str) or not entry[name].strip():
        raise DataError(f"{name!r} is {kind_of(entry[name])}: write the path of an image, a string")
    return Captioned(entry[name], read_captions(entry), read_split(entry))


def read_captions(entry: Mapping[str, Any]) -> list[str]:
    """Return the captions of an object: a string, a list of strings, or none.

    Raises:
        DataError: a value has a wrong type; the key is named.
    """
    key = first_field(entry, CAPTION_FIELDS)
    value = entry[key] if key is not None else None
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise DataError(f"{key!r} is {kind_of(value)}: write a string or a list of strings")
    for number, caption in enumerate(value, start=1):
        if not isinstance(caption, str):
            raise DataError(f"{key!r} holds {kind_of(caption)} at place {number}: write only strings")
    return value


def read_split(entry: Mapping[str, Any]) -> str:
    """Return the split of an object, or ""; raise DataError if it is not the name of a split."""
    split = entry.get(SPLIT_FIELD)
    if split is None or split == "":
        return ""
    if not isinstance(split, str):
        raise DataError(f"{SPLIT_FIELD!r} is {kind_of(split)}: write one of {', '.join(SPLITS)}")
    if not is_split(split):
        raise DataError(f"{SPLIT_FIELD!r} is {kind_of(split)}: use one of {', '.join(SPLITS)} (or dev, val)")
    return split


def first_field(fields: Iterable[str], allowed: Sequence[str]) -> str | None:
    """Return the first allowed name that is among the fields, or None."""
    known = set(fields)
    return next((name for name in allowed if name in known), None)


def kind_of(value: Any) -> str:
    """Return the kind of a value for a message, with the value if it is short."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f"the string {escaped(value)!r}" if len(value) < 40 else "a string"
        case int() | float():
            return f"the number {value}"
        case list():
            return "a list"
        case _:
            return "an object" if isinstance(value, Mapping) else type(value).__name__
