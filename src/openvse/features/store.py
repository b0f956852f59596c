"""A feature store: its files, and reading any batch in its own size of memory. A folder of stores may replace it.

    features.npy   local features of all items, one after the other: [rows, C], float16 or float32
    boxes.npy      the box of each local feature in its image: [rows, 4], float32, only in a store with boxes
    lengths.npy    N of each item: int64 [items]
    ids.txt        the identifier of each item, UTF-8, one a line
    sources.jsonl  a line for each item whose source file is known: the id, the path from the store's folder, the time
                   of the last change and the size (the last line of an item counts)
    store.json     the manifest: format, encoder, how much of the other files is committed, and its checksums
    writer.lock    locked while a process writes

All but the manifest and the lock only ever grow. A commit makes them durable and then replaces the manifest by rename,
so its cost does not depend on the size of the store. Bytes beyond the manifest's counts remain from an interrupted
write. Readers ignore them and the next writer cuts them off.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from openvse.encoders import ImageEncoder, TextEncoder
from openvse.encoders.transformers_text import TransformersText, states_can_be_stored
from openvse.errors import StoreError
from openvse.files import checksum, given_path, parse_json, read_json, read_lines, write_whole, writing
from openvse.functional import position_mask
from openvse.media.images import SMALLER_JPEGS
from openvse.media.listing import ImageFile
from openvse.media.names import escaped
from openvse.types import Inputs

StoreDtype = Literal["float16", "float32"]

FORMAT = "openvse-features"
VERSION = 3

FEATURES = "features.npy"
BOXES = "boxes.npy"
LENGTHS = "lengths.npy"
IDS = "ids.txt"
MANIFEST = "store.json"

IMPORTED = "imported:"
"""The prefix of the fingerprint of imported features of unknown origin. The name of a folder follows."""

# The size of numpy's own header of a small array: magic, length, padded text.
HEADER_BYTES = 128

SMALL_BYTES = 1 << 24
"""Files up to this size are always compared with their checksum when a store is opened, larger ones on request."""


@dataclass(frozen=True)
class StoreManifest:
    """The content of ``store.json``: how the features were made, and how much of them is committed.

    ``encoder`` is the fingerprint of their maker, ``dim`` C, ``rows`` the sum of all N, ``id_bytes`` the committed
    bytes of ``ids.txt``, and ``sums`` the CRC-32 of the committed part of each growing file, without its header.
    """

    encoder: str
    dim: int
    dtype: StoreDtype
    created_by: str
    items: int = 0
    rows: int = 0
    id_bytes: int = 0
    boxes: bool = False
    sums: dict[str, int] = field(default_factory=dict)

    @property
    def row_types(self) -> dict[str, np.dtype[np.void]]:
        """The row type of each file that has a row per local feature."""
        features = {FEATURES: np.dtype((self.dtype, (self.dim,)))}
        return features | ({BOXES: np.dtype(("float32", (4,)))} if self.boxes else {})

    @property
    def file_bytes(self) -> dict[str, int]:
        """The number of committed bytes of each growing file."""
        return {
            **{name: HEADER_BYTES + self.rows * row.itemsize for name, row in self.row_types.items()},
            LENGTHS: HEADER_BYTES + self.items * np.dtype(np.int64).itemsize,
            IDS: self.id_bytes,
        }

    def header(self, name: str) -> bytes:
        """Return the first bytes of a growing file."""
        if name in self.row_types:
            row = self.row_types[name]
            return npy_header(row.base, (self.rows, *row.shape))
        return npy_header(np.dtype(np.int64), (self.items,)) if name == LENGTHS else b""

    @classmethod
    def read(cls, folder: Path) -> StoreManifest:
        """Return the manifest of a store. Raise StoreError if it is missing, damaged, or of another format."""
        path = folder / MANIFEST
        if not path.is_file():
            raise StoreError(f"no feature store at {folder} (no {MANIFEST}): make one with 'openvse extract'")
        try:
            fields = read_json(path)
            name, version = fields.pop("format"), fields.pop("version")
            if name != FORMAT or version != VERSION:
                raise StoreError(
                    f"feature store {folder} has format {name} {version}, but this openvse reads {FORMAT} {VERSION}: "
                    f"extract again, or use the openvse that made it"
                )
            manifest = cls(**fields)
            counts = (manifest.dim, manifest.items, manifest.rows, manifest.id_bytes, *manifest.sums.values())
            sound = all(type(count) is int and count >= 0 for count in counts)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise damaged_store(folder, f"{MANIFEST} cannot be understood") from error
        if not sound or manifest.dtype not in ("float16", "float32") or not isinstance(manifest.boxes, bool):
            raise damaged_store(folder, f"{MANIFEST} holds impossible values")
        if manifest.items and manifest.sums.keys() != manifest.file_bytes.keys():
            raise damaged_store(folder, f"{MANIFEST} lacks checksums")
        return manifest

    def write(self, folder: Path) -> None:
        """Replace the manifest of a store by rename: this is the commit."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        write_whole(folder / MANIFEST, json.dumps(content, indent=2) + "\n")

    def fits(self, encoder: str) -> bool:
        """Return whether an encoder can read the features. An encoder of smaller JPEGs accepts whole files'."""
        return self.encoder in (encoder, encoder.replace(SMALLER_JPEGS, ""))

    def check(self, folder: Path, expected_encoder: str | None) -> None:
        """Raise StoreError unless all committed data are present and were made by the expected encoder."""
        if expected_encoder is not None and expected_encoder != self.encoder:
            raise StoreError(
                f"feature store {folder} was made by encoder {self.encoder!r}, not by {expected_encoder!r}: "
                f"extract again into another folder, or use the encoder that made it. Imported features are read by "
                f"image.encoder='{{name: precomputed, feature_dim: {self.dim}}}'"
            )
        for name, expected in self.file_bytes.items():
            path = folder / name
            size = path.stat().st_size if path.is_file() else 0
            if size < expected:
                raise damaged_store(folder, f"{name} has {size} of {expected} bytes")

    def summed(self, folder: Path, before: StoreManifest) -> StoreManifest:
        """Return the manifest with its checksums. The part after an earlier commit is read again."""
        sums = {
            name: checksum(folder / name, skip=end, size=self.file_bytes[name] - end, start=before.sums.get(name, 0))
            for name, end in before.file_bytes.items()
        }
        return replace(self, sums=sums)

    def compare(self, folder: Path, *, all_files: bool) -> None:
        """Raise StoreError if a small file, or with ``all_files`` any file, does not match its checksum."""
        for name, known in self.sums.items():
            end, header = self.file_bytes[name], 0 if name == IDS else HEADER_BYTES
            is_compared = all_files or end <= SMALL_BYTES
            if is_compared and checksum(folder / name, skip=header, size=end - header) != known:
                raise damaged_store(folder, f"{name} does not match its checksum")


def encode_ids(ids: Iterable[str]) -> bytes:
    """Return the bytes of ``ids.txt`` for some identifiers. File names that are not valid UTF-8 are preserved."""
    return "".join(f"{item}\n" for item in ids).encode(errors="surrogateescape")


def read_ids(folder: Path, manifest: StoreManifest) -> tuple[str, ...]:
    """Return the committed identifiers of a store, in the order of its items."""
    with (folder / IDS).open("rb") as file:
        text = file.read(manifest.id_bytes).decode(errors="surrogateescape")
    ids = tuple(text.split("\n")[:-1])
    if len(ids) != manifest.items:
        raise damaged_store(folder, f"{IDS} names {len(ids)} of {manifest.items} items")
    return ids


def npy_header(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bytes:
    """Return a header of the ``.npy`` format, version 1.0, with a size that does not depend on the shape."""
    text = repr({"descr": dtype.newbyteorder("<").str, "fortran_order": False, "shape": shape}).encode()
    magic = b"\x93NUMPY\x01\x00"
    room = HEADER_BYTES - len(magic) - 2
    return magic + room.to_bytes(2, "little") + text.ljust(room - 1) + b"\n"


def damaged_store(folder: Path, what: str) -> StoreError:
    """Return the error for a damaged store, which no extraction leaves behind, however it ends."""
    return StoreError(f"feature store {folder} is damaged: {what}. Delete the folder and extract again")


SOURCES = "sources.jsonl"


@dataclass(frozen=True)
class SourceFile:
    """The source file of an item at the time of its extraction: its last change in ns, its size in bytes."""

    id: str
    modified_ns: int
    size: int


class SourceLog:
    """Notes the source files of items as they are added. With ``anew``, existing lines belong to an earlier store."""

    def __init__(self, store: Path, *, anew: bool) -> None:
        self._folder = Path(os.path.realpath(store))
        with writing(store):
            self._file = (store / SOURCES).open("wb" if anew else "ab", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def add(self, item: str, path: Path, status: os.stat_result) -> None:
        """Note the source file of an item, with its status before it was read."""
        where = os.path.relpath(os.path.realpath(path), self._folder)
        line = {"id": item, "path": where, "modified_ns": status.st_mtime_ns, "size": status.st_size}
        with writing(self._folder):
            # The line end before it separates it from the rest of a line that a kill cut off.
            self._file.write(f"\n{json.dumps(line)}\n".encode())


def changed_since(sources: Mapping[str, SourceFile], images: Iterable[tuple[str, ImageFile]]) -> list[str]:
    """Return the ids of images whose file has changed since it was read: it has another size or a later time.

    If all files have another time, they were copied, and only sizes are compared.
    """
    sized, timed, checked = list[str](), list[str](), 0
    for item, path in images:
        if (source := sources.get(item)) is None or not isinstance(path, Path) or not path.exists():
            continue
        status, checked = path.stat(), checked + 1
        if status.st_size != source.size:
            sized.append(item)
        if (status.st_mtime_ns, status.st_size) != (source.modified_ns, source.size):
            timed.append(item)
    return sized if len(timed) == checked > 1 else timed


def read_sources(store: Path) -> Mapping[Path, SourceFile]:
    """Return a store's source files by real path, none without a list. Raise StoreError if it is unreadable."""
    folder, sources = os.path.realpath(store), dict[Path, SourceFile]()
    try:
        lines = read_lines(store / SOURCES)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StoreError(f"{store / SOURCES} cannot be read ({error}): delete it") from error
    for line in lines:
        try:
            fields = parse_json(line)
            path = Path(os.path.normpath(os.path.join(folder, fields["path"])))  # noqa: PTH118 - real paths
            sources[path] = SourceFile(fields["id"], fields["modified_ns"], fields["size"])
        except (ValueError, KeyError, TypeError):
            continue  # cut off by a kill
    return sources


def positions_of(ids: Sequence[str], known: Mapping[str, int], *, source: str, remedy: str) -> Int[np.ndarray, "B"]:
    """Return the positions of items."""
    if missing := [item for item in ids if item not in known]:
        named = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
        raise StoreError(f"{source} has no features of {len(missing)} of {len(ids)} items ({named}): {remedy}")
    return np.fromiter((known[item] for item in ids), dtype=np.int64, count=len(ids))


def as_inputs(stored: Shaped[np.ndarray, "B N C"], lengths: Int[np.ndarray, "B"]) -> Inputs:
    """Return items in one array, padded with zeros, as values ``[B, N, C]`` and a mask."""
    return Inputs(torch.from_numpy(stored), position_mask(torch.from_numpy(lengths), stored.shape[1]))


def as_float(stored: Inputs) -> Inputs:
    """Return items with values in ``float32``."""
    return replace(stored, values=stored.values.float())


class FeatureStore:
    """Local features of images on disk, by identifier. A ``FeatureSource``.

    Each item is read from its place in the file, directly into the padded batch. Compared with a fancy index of a
    memory map, this is at least as fast from the page cache and several times faster from disk, where a map faults page
    by page. The pages of a map also count as memory of this process, in the end for the whole store. To map the file
    nevertheless: ``np.load(path / "features.npy", mmap_mode="r")``.

    The store holds the data committed before it was opened. A writer may continue meanwhile. It pickles as its path, so
    that each worker of a data loader opens it itself.

    Attributes:
        dim: C, the width of a local feature.
        fingerprint: the fingerprint of the encoder that made the features.
        has_boxes: whether the store holds a box for each local feature.

    Examples:
        >>> store = FeatureStore(Path("features"))  # doctest: +SKIP
        >>> batch = store.gather(store.positions(["a.jpg", "b.jpg"]))  # doctest: +SKIP
    """

    def __init__(self, path: str | Path, expected_fingerprint: str | None = None, *, check: bool = False) -> None:
        """Open a store for reading.

        Args:
            path: the folder of the store.
            expected_fingerprint: the encoder that must have made the store. None accepts any.
            check: compare all files with their checksums, whatever their size. Small files are always compared.

        Raises:
            StoreError: the store is missing, damaged, of another format version or made by another encoder.
        """
        self.path = path = given_path(path, "the feature store")
        self._manifest = StoreManifest.read(path)
        fits = expected_fingerprint is None or self._manifest.fits(expected_fingerprint)
        self._manifest.check(path, None if fits else expected_fingerprint)
        self._manifest.compare(path, all_files=check)
        self.dim, self.fingerprint = self._manifest.dim, self._manifest.encoder
        self.has_boxes = self._manifest.boxes
        self.lengths: Int[np.ndarray, "items"] = np.fromfile(
            path / LENGTHS, "<i8", self._manifest.items, offset=HEADER_BYTES
        )
        """N of each item."""
        if (self.lengths < 1).any():
            raise damaged_store(path, f"{LENGTHS} has an item without features")
        if self.lengths.sum() != self._manifest.rows:
            raise damaged_store(path, f"{LENGTHS} does not add up to its {self._manifest.rows} features")
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._files = {name: os.open(path / name, os.O_RDONLY) for name in self._manifest.row_types}
        for file in self._files.values():
            weakref.finalize(self, os.close, file)

    def __reduce__(self) -> tuple[type[FeatureStore], tuple[Path, str]]:
        return FeatureStore, (self.path, self.fingerprint)

    def __len__(self) -> int:
        return self._manifest.items

    def __contains__(self, item: object) -> bool:
        return item in self._position_of

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The identifier of each item, in the order of the positions."""
        return read_ids(self.path, self._manifest)

    @cached_property
    def _position_of(self) -> dict[str, int]:
        # Built on first use: workers that only gather never hold it.
        return dict(zip(self.ids, range(len(self)), strict=True))

    @cached_property
    def _sources(self) -> dict[str, SourceFile]:
        return {source.id: source for source in read_sources(self.path).values()}

    def stale(self, images: Iterable[tuple[str, ImageFile]]) -> str:
        """Return a line about images whose file has changed since their features were stored, or "".

        Args:
            images: identifier and file of each image.
        """
        if not (changed := changed_since(self._sources, images)):
            return ""
        return (
            f"{len(changed)} image(s) have changed since {self.path} was made (first: {escaped(changed[0])}), whose "
            f"features come from the earlier files: delete this store, or extract into another"
        )

    def positions(self, ids: Sequence[str]) -> Int[np.ndarray, "B"]:
        """Return the positions of items. Raise StoreError, with the first three, if some are missing."""
        return positions_of(
            ids,
            self._position_of,
            source=f"feature store {self.path}",
            remedy="run 'openvse extract' again, which adds them",
        )

    def gather(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Read items from disk: ``float32 [B, N, C]``, padded with zeros to the longest item, mask and boxes.

        Raise StoreError if the file has become shorter since the store was opened.
        """
        return as_float(self.gather_stored(positions))

    def gather_stored(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Read items as ``gather`` does, in the number format of the store, which encoders also take."""
        inputs = as_inputs(self._read(FEATURES, positions), self.lengths[positions])
        return replace(inputs, boxes=self.boxes(positions)) if self.has_boxes else inputs

    def boxes(self, positions: Int[np.ndarray, "B"]) -> Float[Tensor, "B N 4"]:
        """Read left, top, right and bottom of each feature as fractions of the image's sides, padded with zeros.

        Raise StoreError if the store has no boxes, or the file has become shorter since the store was opened.
        """
        if not self.has_boxes:
            raise StoreError(f"feature store {self.path} has no boxes: make one with boxes by 'openvse data import'")
        return torch.from_numpy(self._read(BOXES, positions))

    def _read(self, name: str, positions: Int[np.ndarray, "B"]) -> Shaped[np.ndarray, "B N _"]:
        """Read the rows of items, padded with zeros to the longest."""
        row = self._manifest.row_types[name]
        lengths = self.lengths[positions]
        stored = np.zeros((len(positions), int(lengths.max(initial=0))), row)
        offsets = HEADER_BYTES + self._starts[positions] * row.itemsize
        for item, length, offset in zip(stored, lengths.tolist(), offsets.tolist(), strict=True):
            if os.preadv(self._files[name], [item[:length].data], offset) != length * row.itemsize:
                raise damaged_store(self.path, f"{name} became shorter since the store was opened")
        return stored


def open_store(path: Path | None, encoder: ImageEncoder | TransformersText) -> FeatureStore | None:
    """Open the store that an encoder can read, like ``open_fitting``. None without a path."""
    if path is None:
        return None
    return open_fitting(path, fingerprint=encoder.fingerprint, dim=encoder.feature_dim)


def has_store_of(path: Path, encoder: ImageEncoder) -> bool:
    """Return whether a store, or one in a folder of stores, may belong to an encoder.

    A place without any store counts, too, and ``open_store`` reports its fault.
    """
    folders = [path] if (path / MANIFEST).exists() else [each.parent for each in path.glob(f"*/{MANIFEST}")]
    made = [StoreManifest.read(folder) for folder in folders]
    if encoder.fingerprint is None:
        return not made or any(each.dim == encoder.feature_dim for each in made)
    return not made or any(each.fits(encoder.fingerprint) for each in made)


def open_token_states(path: Path | None, encoder: TextEncoder) -> FeatureStore | None:
    """Open the store of token states that a text encoder can read. None without a path, or if it can use none.

    A text model that was fine-tuned, for instance, cannot use stored states.
    """
    return open_store(path, encoder) if states_can_be_stored(encoder) else None


def open_fitting(path: Path, *, fingerprint: str | None, dim: int) -> FeatureStore:
    """Open a store, or the fitting one in a folder of stores.

    Args:
        path: a store, or a folder that holds stores, for instance ``features`` with ``features/grid`` and
            ``features/regions``.
        fingerprint: the encoder that made the store. None takes any, and in a folder the one of width ``dim``.
        dim: C, the width of the features that the model expects.

    Raises:
        StoreError: the store is missing, damaged or made by another encoder, or none or several of the folder fit.
    """
    stores = {each.parent: StoreManifest.read(each.parent) for each in sorted(path.glob(f"*/{MANIFEST}"))}
    if not stores or (path / MANIFEST).exists():
        return FeatureStore(path, fingerprint)
    fitting = {
        folder: manifest
        for folder, manifest in stores.items()
        if (manifest.dim == dim if fingerprint is None else manifest.fits(fingerprint))
    }
    if len(fitting) == 1:
        return FeatureStore(next(iter(fitting)), fingerprint)
    wanted = f"width {dim}" if fingerprint is None else f"encoder {fingerprint!r}"
    if not fitting:
        raise StoreError(
            f"no feature store in {path} belongs to {wanted} (there are {_listed(stores.items())}): extract or "
            f"import the features that the model reads, or give another folder"
        )
    remedy = "name one of them" + (", or set image.encoder.made_by" if fingerprint is None else "")
    raise StoreError(f"{len(fitting)} stores in {path} belong to {wanted} ({_listed(fitting.items())}): {remedy}")


def _listed(stores: Iterable[tuple[Path, StoreManifest]]) -> str:
    return ", ".join(f"{place.name} (made by {manifest.encoder!r}, width {manifest.dim})" for place, manifest in stores)
