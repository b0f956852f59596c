"""The manifest of an index: its model, the shape of its embeddings, and the files that hold them.

    index.json            the manifest, replaced by rename
    items-<id>.sqlite     the items, their metadata, the roots, and which rows of which file are in use
    vectors-<id>.npy      embeddings: float [rows, K, D], an ordinary NumPy file
    unfinished.json       a manifest of an index that is to replace this one and is not finished
    writer.lock           held while a process writes

The database decides which items are in the index. Embeddings are appended to a file and are on the disk before the
transaction that names them, so at every moment the last transaction defines the index.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from openvse.errors import DataError, IndexDamagedError, IndexFormatError, IndexVersionError
from openvse.files import read_json, write_whole
from openvse.settings import FIRST, Declared, check_settings

if TYPE_CHECKING:
    from openvse.media.text_reading import TextReader

VectorDtype = Literal["float16", "float32"]
Held = Literal["images", "sentences"]

FORMAT = "openvse-index"
VERSION = 4
MANIFEST = "index.json"
UNFINISHED = "unfinished.json"


WHAT, HOW = "What is indexed", "How it is kept"
"""The panels of the help for settings that say what an index holds, and how."""


@dataclass(frozen=True)
class IndexSettings:
    """The settings of an index, which it remembers. None keeps the present one.

    ``read_text`` also takes a ``TextReader`` of your own, which you give every time.

    Attributes:
        ignore: patterns of files or folders to skip, as in .gitignore. A file .openvseignore in a folder does the same.
        follow_links: follow links to folders.
        segment_seconds: split clips into segments of so many seconds, and index them separately. 0 keeps clips whole. A
            model of images sees the middle frame of each segment.
        dtype: the number type of the embeddings: float32, or float16, which halves disk and memory.
        query_bank: sentences that show which images rank high for every query, to demote these, in place of the model's
            own, which a new index has. No sentences: no demotion.
        engine: the engine that finds the nearest embeddings: exact, int8 (in the index folder), or the URL of a server,
            such as http://HOST:6333 (Qdrant) or postgresql://USER@HOST/DATABASE. The index keeps no password in a URL.
            OPENVSE_ENGINE_URL may hold the URL. Default: the engine of the index.
        towers: the towers to write beside the index, so that searches start without PyTorch: text (the default of a new
            index), both (for queries by images, too) or none.
        read_text: also read the text in images, to find them by it (the extra ocr). Searches work meanwhile. none:
            forget the text.
    """

    ignore: Annotated[Sequence[str] | None, Declared(panel=FIRST)] = None
    follow_links: Annotated[bool | None, Declared(panel=WHAT)] = None
    segment_seconds: Annotated[float | None, Declared(0.1, 86_400, zero="whole clips", panel=WHAT)] = None
    dtype: Annotated[VectorDtype | None, Declared(panel=HOW, metavar="TYPE")] = None
    query_bank: Annotated[Sequence[str] | None, Declared(panel=WHAT, metavar="FILE")] = None
    engine: Annotated[str | None, Declared(panel=HOW, metavar="ENGINE")] = None
    towers: Annotated[
        Literal["text", "both", "none"] | None, Declared(panel=HOW, metavar="WHICH", envvar="OPENVSE_TOWERS")
    ] = None
    read_text: Annotated["str | TextReader | None", Declared(panel=FIRST, metavar="[READER]")] = None

    def __post_init__(self) -> None:
        check_settings(self)
        if self.query_bank is not None and len(self.query_bank) == 1:
            raise DataError(f"query_bank is {self.query_bank[0]!r:.60}: give 2 sentences or more, better some hundreds")


@dataclass(frozen=True)
class Item:
    """An image at the time of indexing. An image that differs in any of these is read again.

    Attributes:
        id: its path below its root, with forward slashes. For all roots but the first, the label of the root and a
            colon come before it. In an index of sentences, the sentence.
        modified_ns: the time of its last change, 0 for a sentence.
        size: the bytes of the file, or of the sentence.
    """

    id: str
    modified_ns: int
    size: int


@dataclass(frozen=True)
class IndexManifest:
    """The content of ``index.json``. ``root`` and ``count`` are not in it, and come from the database.

    ``model`` is a fingerprint, ``items`` the name of the database, and ``created`` is in UTC (ISO 8601). Without an
    ``engine`` the exact one searches it (``stores.choice``).
    """

    model: str
    num_embeddings: int
    dim: int
    dtype: VectorDtype
    created: str
    items: str
    model_place: dict[str, str] | None = None
    holds: Held = "images"
    engine: dict[str, str] | None = None
    gaussians: bool = False
    root: str = ""
    count: int = 0

    def write(self, folder: Path, name: str = MANIFEST) -> None:
        """Make this the manifest of the folder, by rename."""
        fields = asdict(self)
        for filled_in in ("root", "count"):
            del fields[filled_in]
        write_whole(folder / name, json.dumps({"format": FORMAT, "version": VERSION, **fields}, indent=2) + "\n")


def read_manifest(folder: Path, name: str = MANIFEST) -> IndexManifest:
    """Read a manifest. Raise IndexFormatError if it is missing, damaged, or of another format version."""
    path = folder / name
    if not path.is_file():
        raise IndexFormatError(f"{folder} is not an index (it has no {name}): make one with 'openvse index'")
    try:
        fields: dict[str, Any] = read_json(path)
        kind = fields.pop("format"), fields.pop("version")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise damaged(folder, f"{name} cannot be understood") from error
    if kind != (FORMAT, VERSION):
        raise IndexVersionError(
            f"index {folder} has format {kind[0]} {kind[1]}, but this openvse reads {FORMAT} {VERSION}: update "
            f"openvse, or run 'openvse index --overwrite'"
        )
    try:
        manifest = IndexManifest(**{**fields, "root": "", "count": 0})
    except TypeError as error:
        raise damaged(folder, f"{name} cannot be understood") from error
    if not _is_sound(manifest):
        raise damaged(folder, f"{name} holds impossible values")
    return manifest


def _is_sound(manifest: IndexManifest) -> bool:
    """Return whether the values of a file, which anybody may have written, are of their kinds."""
    noted = [{} if each is None else each for each in (manifest.model_place, manifest.engine)]
    if not all(isinstance(each, dict) for each in noted):
        return False
    texts = manifest.model, manifest.created, manifest.items, *noted[0].values(), *noted[1].values()
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(count) is int and count > 0 for count in (manifest.num_embeddings, manifest.dim))
        and Path(manifest.items).name == manifest.items
        and manifest.dtype in ("float16", "float32")
        and manifest.holds in ("images", "sentences")
        and manifest.gaussians in (None, True, False)
    )


def check_model(folder: Path, manifest: IndexManifest, fingerprint: str | None) -> None:
    """Raise IndexFormatError unless the model made the index: embeddings of two models cannot be compared."""
    if fingerprint not in (None, manifest.model):
        raise IndexFormatError(
            f"index {folder} was made by model {manifest.model}, not by {fingerprint}: use that model, "
            f"or run 'openvse index --overwrite' with this one"
        )


def damaged(folder: Path, what: str) -> IndexDamagedError:
    """Return the error of an index that no indexing leaves behind, however it ends."""
    return IndexDamagedError(f"index {folder} is damaged ({what}): run 'openvse index' again")


Place = dict[str, str]
"""Either ``hub``, the id on the hub, or ``folder``, the path from the index, and ``absolute``, the whole path."""


def place_of(model: str | Path, index: Path) -> Place:
    """Return the place of a model that was loaded from a folder or the hub, as an index remembers it."""
    if not Path(model).exists():
        return {"hub": str(model)}
    absolute = Path(model).resolve()
    try:
        return {"folder": os.path.relpath(absolute, index.resolve()), "absolute": str(absolute)}
    except ValueError:  # on another drive
        return {"absolute": str(absolute)}


def index_folder(place: str | Path) -> Path | None:
    """Return the folder of an index, or the index of a run's folder, or None if there is neither."""
    try:
        return next((each for each in (Path(place), Path(place, "index")) if (each / MANIFEST).is_file()), None)
    except (OSError, ValueError):  # a sentence may be longer than any name
        return None


def find_model(index: Path, manifest: IndexManifest | None = None) -> tuple[str, str]:
    """Return the place of the model of an index, a folder or hub id, and a warning for the user or "".

    The path from the index is tried first, so that both can be moved together, and then the whole path.
    """
    place = (manifest or read_manifest(index)).model_place
    remedy = f"name the model: openvse search MODEL {index} ..., or run 'openvse index' again"
    if not place:
        raise IndexFormatError(f"index {index} does not say where its model is, as your own program made it: {remedy}")
    if "hub" in place:
        return place["hub"], ""
    beside, absolute = index / place.get("folder", ""), Path(place.get("absolute", ""))
    if "folder" in place and beside.is_dir():
        return os.path.normpath(beside), ""
    if "absolute" in place and absolute.is_dir():
        return str(absolute), (
            f"index {index} has moved away from its model, which is still at {absolute}: run 'openvse index' again, "
            f"so that it remembers the new place"
        )
    raise IndexFormatError(f"the model of index {index} is no longer at {absolute}: {remedy}")
