"""Where the model of an index is: remembered in the index, so that a search needs no more than the index."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from openvse.errors import IndexFormatError
from openvse.search.index import read_manifest

Place = dict[str, str]
"""``folder`` is the path from the index, ``absolute`` the whole one; or ``hub`` is an id of the hub."""


@dataclass(frozen=True)
class FoundModel:
    """A model where an index remembers it.

    Attributes:
        source: the folder or the hub id.
        warning: what the user should know of it; empty if nothing.
    """

    source: str
    warning: str = ""


def place_of(model: str | Path, index: Path) -> Place:
    """Return what an index remembers of a model that was loaded from a folder or from the hub."""
    if not Path(model).exists():
        return {"hub": str(model)}
    absolute = Path(model).resolve()
    try:
        return {"folder": os.path.relpath(absolute, index.resolve()), "absolute": str(absolute)}
    except ValueError:  # on another drive
        return {"absolute": str(absolute)}


def find_model(index: Path) -> FoundModel:
    """Return where the model of an index is.

    The path from the index counts first, so that both may move together; then the whole path.

    Raises:
        IndexFormatError: there is no index, it does not say where its model is, or there is none any more.
    """
    place = read_manifest(index).model_place
    remedy = f"name it: openvse search MODEL {index} ..., or run 'openvse index' again"
    if not place:
        raise IndexFormatError(
            f"index {index} does not say where its model is, because an earlier openvse or a program made it: {remedy}"
        )
    if "hub" in place:
        return FoundModel(place["hub"])
    beside, absolute = index / place.get("folder", ""), Path(place.get("absolute", ""))
    if "folder" in place and beside.is_dir():
        return FoundModel(os.path.normpath(beside))
    if "absolute" in place and absolute.is_dir():
        return FoundModel(
            str(absolute),
            f"index {index} has moved away from its model, which is still at {absolute}: run 'openvse index' again, "
            f"so that it remembers where",
        )
    raise IndexFormatError(f"the model of index {index} is no longer at {absolute}: {remedy}")
