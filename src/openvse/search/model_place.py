"""The place of an index's model, which the index remembers, so that a search only needs the index."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from openvse.errors import IndexFormatError
from openvse.search.manifest import read_manifest

Place = dict[str, str]
"""Either ``hub``, the id on the hub; or ``folder``, the path from the index, and ``absolute``, the whole path."""


@dataclass(frozen=True)
class FoundModel:
    """The place of a model, as an index remembers it.

    Attributes:
        source: the folder or the hub id of the model.
        warning: a warning for the user; empty if there is none.
    """

    source: str
    warning: str = ""


def place_of(model: str | Path, index: Path) -> Place:
    """Return the place of a model that was loaded from a folder or the hub, as an index remembers it."""
    if not Path(model).exists():
        return {"hub": str(model)}
    absolute = Path(model).resolve()
    try:
        return {"folder": os.path.relpath(absolute, index.resolve()), "absolute": str(absolute)}
    except ValueError:  # on another drive
        return {"absolute": str(absolute)}


def find_model(index: Path) -> FoundModel:
    """Return the place of the model of an index.

    The path from the index is tried first, so that both can be moved together, and then the whole path.

    Raises:
        IndexFormatError: the index does not exist, does not say where its model is, or its model is gone.
    """
    place = read_manifest(index).model_place
    remedy = f"name the model: openvse search MODEL {index} ..., or run 'openvse index' again"
    if not place:
        raise IndexFormatError(
            f"index {index} does not say where its model is, because an earlier openvse or your own program "
            f"made it: {remedy}"
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
            f"so that it remembers the new place",
        )
    raise IndexFormatError(f"the model of index {index} is no longer at {absolute}: {remedy}")
