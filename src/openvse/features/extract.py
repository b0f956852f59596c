"""Extraction: run a backbone over images, or a frozen text model over texts, and keep their features in a store."""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

import openvse
from openvse.backbones import Backbone
from openvse.encoders.transformers_text import TransformersText
from openvse.errors import BadFeaturesError, DataError, ModelError, RecipeError, StoreError
from openvse.features.store import (
    BOXES,
    FEATURES,
    HEADER_BYTES,
    IDS,
    LENGTHS,
    MANIFEST,
    FeatureStore,
    SourceFile,
    SourceLog,
    StoreDtype,
    StoreManifest,
    encode_ids,
    open_store,
    read_ids,
    read_sources,
)
from openvse.files import locked, read_text, replacing, writing
from openvse.functional import pad
from openvse.halves import usable_device
from openvse.media.listing import ImageFile
from openvse.model.two_tower import TwoTower, embed, evaluating
from openvse.pipeline import Pace, Workers, WorkProgress, decoded, in_batches, remaining, results_in_order
from openvse.specs.load import parse_yaml
from openvse.types import EmbeddingSet, Features


class FeatureStoreWriter:
    """Creates a feature store, or continues one. A context manager that commits when it ends.

    Items become part of the store with ``commit``. A writer that is killed loses only the items after its last commit.
    The next writer cuts off the remains and continues.

    Examples:
        >>> with FeatureStoreWriter("features", fingerprint="vit", dim=768) as writer:  # doctest: +SKIP
        ...     writer.add("a.jpg", local)
    """

    def __init__(
        self, path: str | Path, *, fingerprint: str, dim: int, dtype: StoreDtype = "float16", boxes: bool = False
    ) -> None:
        """Lock the store and prepare it for more items.

        Args:
            path: the folder of the store, which is created if it is missing.
            fingerprint: the encoder that makes the features.
            dim: C, the width of a local feature.
            dtype: the number format. float16 halves the disk space and holds numbers up to 65504.
            boxes: whether to keep the box of each local feature. Then every item needs boxes.

        Raises:
            StoreError: the folder holds a damaged store or one of another encoder, width or number format, or
                another process writes to it.
        """
        self.path = path = Path(path)
        with ExitStack() as opening, writing(path):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise StoreError(f"feature store {path} cannot be made ({error.strerror}): choose another") from error
            opening.enter_context(locked(path, "feature store", StoreError))
            if not (path / MANIFEST).exists():
                _create(path, StoreManifest(fingerprint, dim, dtype, openvse.__version__, boxes=boxes))
            self._manifest = StoreManifest.read(path)
            self._manifest.check(path, fingerprint)
            _check_numbers(path, self._manifest, dim, dtype, boxes)
            self._files = {name: opening.enter_context((path / name).open("r+b")) for name in self._manifest.file_bytes}
            for name, size in self._manifest.file_bytes.items():
                self._files[name].truncate(size)
            # The row after each item. Of the items committed before, only the last matters. Adding an item and
            # committing each change one thing, at their end, so that an interrupt leaves nothing half-done.
            self._ends = dict.fromkeys(read_ids(path, self._manifest), self._manifest.rows)
            self._open = opening.pop_all()

    def __enter__(self) -> FeatureStoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, item: object) -> bool:
        return item in self._ends

    def add(self, item: str, local: Float[Tensor, "N C"], boxes: Float[Tensor, "R 4"] | None = None) -> None:
        """Append the local features of one item, on any device. They count once they are committed.

        Boxes are left, top, right and bottom of each feature (R = N) as fractions of the image's width and height.

        Raises:
            BadFeaturesError: the identifier is already in the store or invalid, the features are empty, of another
                width, not finite, or too large for the number format, or the boxes are missing or invalid. The store
                does not change.
            DiskError: the disk is full or cannot be written to.
        """
        self._check_item(item, local)
        rows = {FEATURES: local}
        if self._manifest.boxes:
            rows[BOXES] = _checked_boxes(item, boxes, len(local))
        with writing(self.path):
            for name, values in rows.items():
                row = self._manifest.row_types[name]
                # The position is set again each time, because after a failed write it may be anywhere.
                self._files[name].seek(HEADER_BYTES + self._rows * row.itemsize)
                self._files[name].write(values.detach().float().cpu().numpy().astype(row.base, order="C").data)
        self._ends[item] = self._rows + len(local)

    def commit(self) -> None:
        """Make all added items durable. If this fails, raise DiskError and keep the last commit."""
        old = self._manifest
        if not (new := dict(islice(self._ends.items(), old.items, None))):
            return
        ids = encode_ids(new)
        lengths = np.diff(np.fromiter(new.values(), "<i8"), prepend=old.rows).tobytes()
        manifest = replace(old, items=len(self), rows=self._rows, id_bytes=old.id_bytes + len(ids))
        with writing(self.path):
            for name in self._files:
                self._append(name, {LENGTHS: lengths, IDS: ids}.get(name, b""), manifest.header(name))
            manifest = manifest.summed(self.path, old)
            manifest.write(self.path)
            self._manifest = manifest

    def close(self) -> None:
        """Commit, and release the lock of the store."""
        with writing(self.path), self._open:
            self.commit()

    @property
    def _rows(self) -> int:
        return next(reversed(self._ends.values()), 0)

    def _append(self, name: str, tail: bytes, header: bytes) -> None:
        """Write the new data after the committed data, and the header in its place, then wait for the disk."""
        file = self._files[name]
        if tail:
            file.seek(self._manifest.file_bytes[name])
            file.write(tail)
        file.seek(0)
        file.write(header)
        file.flush()
        os.fsync(file.fileno())

    def _check_item(self, item: str, local: Tensor) -> None:
        dim, dtype = self._manifest.dim, self._manifest.dtype
        if item in self:
            raise BadFeaturesError(f"feature store {self.path} already holds {item!r}: give each item its own id")
        if not item or "\n" in item or len(item) > 4096:
            raise BadFeaturesError(f"{item[:80]!r} cannot be an id of a feature store: give one short line of text")
        if local.shape[0] == 0 or local.shape[1] != dim:
            raise BadFeaturesError(f"features of {item!r} have shape {list(local.shape)}, not [N, {dim}] with N >= 1")
        peak = float(local.detach().abs().max())
        if not math.isfinite(peak):
            raise BadFeaturesError(f"features of {item!r} hold NaN or infinity: check the image and the encoder")
        largest = float(np.finfo(dtype).max)  # numpy would round the peak to float16 to compare them
        if peak > largest:
            raise BadFeaturesError(
                f"features of {item!r} reach {peak:.6g}, but {dtype} ends at {largest:.6g}: make a new store of float32"
            )


def _checked_boxes(item: str, boxes: Tensor | None, count: int) -> Tensor:
    if boxes is None or boxes.shape != (count, 4):
        given = "no boxes" if boxes is None else f"boxes {list(boxes.shape)}"
        raise BadFeaturesError(f"{item!r} has {given}, but this store takes boxes [{count}, 4] with its features")
    left, top, right, bottom = boxes.unbind(1)
    if not torch.stack([left >= 0, top >= 0, right <= 1, bottom <= 1, left <= right, top <= bottom]).all():
        raise BadFeaturesError(f"boxes of {item!r} are not fractions: give left, top, right, bottom from 0 to 1")
    return boxes


def _create(folder: Path, empty: StoreManifest) -> None:
    features = folder / FEATURES
    if features.exists() and features.stat().st_size > HEADER_BYTES:
        # Other data, or a store without its manifest, must not be overwritten.
        raise StoreError(f"{folder} holds {FEATURES} but no {MANIFEST}: delete it, or choose another folder")
    for name in empty.file_bytes:
        with replacing(folder / name) as partial:
            partial.write_bytes(empty.header(name))
    empty.write(folder)


def _check_numbers(folder: Path, manifest: StoreManifest, dim: int, dtype: StoreDtype, boxes: bool) -> None:
    held, given = (
        f"{kind} of width {width}{' with boxes' if has_boxes else ''}"
        for kind, width, has_boxes in ((manifest.dtype, manifest.dim, manifest.boxes), (dtype, dim, boxes))
    )
    if held != given:
        raise StoreError(f"feature store {folder} holds {held}, not {given}: write to another folder")


class StoredFeatures:
    """Embeds images from the features in a store, for ``build_index``.

    Args:
        model: the model whose encoder made the features.
        store: a store that ``extract_features`` made, which notes the file of each item.
    """

    def __init__(self, model: TwoTower, store: FeatureStore) -> None:
        self._model, self.store, self._sources = model, store, read_sources(store.path)
        self._reads_images = model.image.encoder.backbone.reads_images
        self._moved: dict[tuple[str, int, int], SourceFile | None] = {}
        for path, source in ({} if self._reads_images else self._sources).items():
            key = path.name, source.modified_ns, source.size
            self._moved[key] = None if key in self._moved else source

    def find(self, path: Path, modified_ns: int, size: int) -> int | None:
        """Return the position of an image in the store, or None if it is missing there or has changed since.

        A model that cannot read images recognises a moved image by its name, time and size.
        """
        source = self._sources.get(Path(os.path.realpath(path)), self._moved.get((path.name, modified_ns, size)))
        if source is None or (source.modified_ns, source.size) != (modified_ns, size):
            return None
        return int(self.store.positions([source.id])[0]) if source.id in self.store else None

    def holds(self, ids: Sequence[str], files: Sequence[ImageFile]) -> bool:
        """Return whether the store has all of some images under these identifiers, and their files have not changed.

        For a model that cannot read images, the state of the files does not matter.
        """
        if not self._reads_images:
            return all(item in self.store for item in ids)
        return all(isinstance(file, Path) and self._has(item, file) for item, file in zip(ids, files, strict=True))

    def _has(self, item: str, file: Path) -> bool:
        source = self._sources.get(Path(os.path.realpath(file)))
        try:
            status = file.stat()
        except OSError:
            return False
        return source == SourceFile(item, status.st_mtime_ns, status.st_size) and item in self.store

    def embed(self, positions: Int[np.ndarray, "B"], batch_size: int) -> EmbeddingSet:
        """Embed the images at these positions of the store, in the order given."""
        numbers = map(np.array, in_batches(range(len(positions)), batch_size))
        batches = ((some, self.store.gather(positions[some])) for some in numbers)
        return embed(self._model.image, batches, self._model.device)


def find_stored_features(model: TwoTower, folder: str | Path, features: Path | None = None) -> StoredFeatures | None:
    """Return the stored features that can replace images when a model indexes them.

    Args:
        folder: where the model was loaded from. The store of a run is next to its ``best/``, or its recipe names it.
        features: the folder of a store. None looks for the store of the model's run.

    Returns:
        The stored features, or None if no store is named and the run has none that the model's encoder made.

    Raises:
        StoreError: the named store is missing, damaged, or made by another encoder.
    """
    if features is not None:
        store = open_store(features, model.image.encoder)
        return None if store is None else StoredFeatures(model, store)
    for place in _of_run(Path(folder).resolve().parent):
        try:
            store = open_store(place, model.image.encoder)
        except StoreError:  # another encoder made it, or it is damaged: use the images
            continue
        named = model.image.encoder.fingerprint is not None or not model.image.encoder.backbone.reads_images
        if store is not None and named:
            return StoredFeatures(model, store)
    return None


def _of_run(run: Path) -> list[Path]:
    """Return the folders of a run's stores: its own, and the one that its recipe names."""
    places = [run / "features"]
    try:
        named = parse_yaml(read_text(run / "recipe.yaml"))["data"]["features"]
        places += [Path(named)] if isinstance(named, str) else []
    except (OSError, ValueError, KeyError, TypeError, RecipeError):
        pass  # not a run of openvse
    return [place for place in places if (place / MANIFEST).is_file() or any(place.glob(f"*/{MANIFEST}"))]


ITEMS_IN_PART = 64

_TOKENIZED_AT_ONCE = 1 << 14

Content = TypeVar("Content")

Failures = list[tuple[Content, str]]
"""The unusable items, each with the reason."""


@dataclass
class ExtractionReport:
    """The result of an extraction.

    Attributes:
        done: the number of images whose features were added.
        skipped_existing: the number of images that the store already had.
        failed: path and reason of each image that cannot be used.
        stale: a line about images that the store already had and whose file has changed since, or "".
        seconds: the wall time.
        unit: the name of the counted things, if they are not images.
    """

    done: int = 0
    skipped_existing: int = 0
    failed: Failures[ImageFile] = field(default_factory=list)
    stale: str = ""
    seconds: float = 0.0
    unit: str = "images"

    @property
    def images_per_s(self) -> float:
        """The number of images per second, without the images that the store already had."""
        return (self.done + len(self.failed)) / self.seconds if self.seconds else 0.0


def extract_features(
    backbone: Backbone,
    images: Sequence[tuple[str, str | ImageFile]],
    store: str | Path,
    *,
    batch_size: int = 32,
    device: torch.device | str = "cpu",
    num_workers: int | None = None,
    dtype: StoreDtype = "float16",
    workers: Workers | None = None,
    progress: Callable[[WorkProgress], None] | None = None,
) -> ExtractionReport:
    """Add the local features of images to a feature store. Images that it already has are skipped.

    Images are decoded in threads, or for a GPU in processes, while the backbone computes. The store is
    committed every few seconds and whenever the function ends, so that an interrupted extraction continues from there.
    An image that cannot be used is reported and left out. The next run tries it again.

    Args:
        backbone: the backbone that makes the features. It is moved to ``device``.
        images: identifier and path of each image.
        store: the folder of the store, which is created if it is missing.
        batch_size: the number of images encoded at once. Each frame of a clip counts.
        device: the device on which the backbone runs.
        num_workers: the number of threads that decode, or of processes if the device is a GPU. None chooses it.
        dtype: the number format of the store.
        workers: processes that extract parts of the images. The store is the same, bit for bit, as with one process of
            as many threads as each worker has.
        progress: a function called after each batch, and once if there is nothing to do.

    Raises:
        OpenVSEError: there are workers, and Ray is not installed, or no cluster answers.
        DataError: two images have the same identifier.
        ModelError: the backbone has no network, so it cannot make features.
        StoreError: the store belongs to another backbone, is being written by another process, or cannot hold the
            features that the backbone made.
    """
    paths: dict[str, ImageFile] = {}
    for item, path in images:
        if item in paths:
            raise DataError(f"id {item!r} is used for {paths[item]} and for {path}: give each image its own id")
        paths[item] = Path(path) if isinstance(path, str) else path
    if backbone.fingerprint is None:
        raise ModelError("this encoder only reads stored features: extract with one that has a backbone")
    about = backbone.fingerprint, backbone.feature_dim, backbone.gives_boxes
    at_once = max(1, batch_size // backbone.stored_images)
    how = _ImageExtraction(at_once, device, dtype, *about, backbone, num_workers)
    report = ExtractionReport()
    report.failed = _extract(how, [*paths.items()], Path(store), workers, progress, report)
    report.stale = FeatureStore(store).stale([*paths.items()]) if report.skipped_existing else ""
    return report


def text_id(text: str) -> str:
    """Return the identifier of a text in a store: a digest of its exact characters, which does not reveal the text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def extract_text_features(
    encoder: TransformersText,
    texts: Sequence[str],
    store: str | Path,
    *,
    batch_size: int = 128,
    device: torch.device | str = "cpu",
    dtype: StoreDtype = "float16",
    workers: Workers | None = None,
    progress: Callable[[WorkProgress], None] | None = None,
) -> ExtractionReport:
    """Add the token states of texts to a feature store. Equal texts are stored once. Stored texts are skipped.

    Texts are read in the order of their lengths, so that little of a batch is padding. The store is committed every few
    seconds and whenever the function ends, so that an interrupted extraction continues from there.

    Args:
        encoder: the encoder whose text model makes the states. It is moved to ``device``.
        texts: the sentences. The other arguments are the same as for ``extract_features``.

    Raises:
        OpenVSEError: there are workers, and Ray is not installed, or no cluster answers.
        StoreError: the store belongs to another text model, is being written by another process, or cannot hold the
            states that the text model made.
    """
    wanted = list({text_id(text): text for text in texts}.items())
    report = ExtractionReport(unit="texts")
    how = _TextExtraction(batch_size, device, dtype, encoder.fingerprint, encoder.feature_dim, False, encoder)
    _extract(how, wanted, Path(store), workers, progress, report)
    return report


def _extract(
    how: _Extraction[Content],
    items: Sequence[tuple[str, Content]],
    store: Path,
    workers: Workers | None,
    progress: Callable[[WorkProgress], None] | None,
    report: ExtractionReport,
) -> Failures[Content]:
    """Add the features of items to a store, fill in the report, and return the unusable items."""
    failed: Failures[Content] = []
    with how.open(store) as writer, closing(SourceLog(store, anew=not len(writer))) as sources:
        new = how.new(items, writer)
        report.skipped_existing = len(items) - len(new)
        pace = Pace(len(items), progress, before=report.skipped_existing, unit=report.unit)
        for batch in how.make(new) if workers is None else _by_workers(how, new, workers):
            for row in batch.rows:
                if row.file is not None:
                    sources.add(row.item, *row.file)
                writer.add(row.item, row.local, row.boxes)
            report.done += len(batch.rows)
            failed += batch.failed
            pace.add(len(batch.rows) + len(batch.failed))
            pace.keep(writer.commit)
    if not new:
        pace.tell()
    report.seconds = pace.seconds
    return failed


@dataclass(frozen=True)
class _Row:
    """The features of an item, and their source file with its status before it was read."""

    item: str
    local: Tensor
    boxes: Tensor | None = None
    file: tuple[Path, os.stat_result] | None = None


@dataclass(frozen=True)
class _Made(Generic[Content]):
    """The features of a batch, and its unusable items."""

    rows: list[_Row]
    failed: Failures[Content] = field(default_factory=list)


@dataclass(frozen=True)
class _Extraction(ABC, Generic[Content]):
    """The way to extract the features of items, with the encoder that makes them. Workers receive it."""

    batch_size: int
    device: torch.device | str
    dtype: StoreDtype
    fingerprint: str
    dim: int
    boxes: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", usable_device(self.device))

    def open(self, store: Path) -> FeatureStoreWriter:
        """Create or continue a store."""
        return FeatureStoreWriter(store, fingerprint=self.fingerprint, dim=self.dim, dtype=self.dtype, boxes=self.boxes)

    def new(self, items: Sequence[tuple[str, Content]], writer: FeatureStoreWriter) -> Sequence[tuple[str, Content]]:
        """Return the items that a store lacks, in the order in which they are added."""
        return remaining(items, lambda item: item[0] in writer, self.batch_size)

    @abstractmethod
    def make(self, items: Sequence[tuple[str, Content]]) -> Iterator[_Made[Content]]:
        """Yield the features of items, batch by batch."""

    def part_maker(self) -> Callable[[Sequence[tuple[str, Content]]], list[_Made[Content]]]:
        """Return the function with which a worker extracts its parts."""
        return lambda items: list(self.make(items))


@dataclass(frozen=True)
class _ImageExtraction(_Extraction[ImageFile]):
    backbone: Backbone
    num_workers: int | None

    def make(self, items: Sequence[tuple[str, ImageFile]]) -> Iterator[_Made[ImageFile]]:
        backbone = self.backbone.to(self.device)

        def read(item: tuple[str, ImageFile]) -> tuple[os.stat_result | None, Tensor]:
            _, path = item
            status = path.stat() if isinstance(path, Path) and path.exists() else None  # before it is read
            return status, backbone.read(path, to_store=True)

        batches = in_batches(items, self.batch_size)
        with evaluating(backbone):
            threads, device = self.num_workers, self.device
            for batch in decoded(batches, read, lambda item: item[1], threads=threads, device=device):
                rows = self._rows(batch.items, batch.values) if batch.items else []
                yield _Made(rows, [(path, reason) for (_, path), reason in batch.failed])

    @torch.inference_mode()
    def _rows(
        self, images: Sequence[tuple[str, ImageFile]], decoded_images: Sequence[tuple[os.stat_result | None, Tensor]]
    ) -> list[_Row]:
        """Return the features of one batch."""
        inputs = self.backbone.collate([pixels for _, pixels in decoded_images]).to(self.device)
        seen: Features = self.backbone(inputs)
        boxes = [None] * len(images) if seen.boxes is None else seen.boxes.cpu()
        made = []
        features = zip(seen.local.cpu(), seen.mask.cpu(), boxes, strict=True)
        for (item, path), (status, _), row in zip(images, decoded_images, features, strict=True):
            local, real, row_boxes = row
            file = (path, status) if isinstance(path, Path) and status is not None else None
            made.append(_Row(item, local[real], None if row_boxes is None else row_boxes[real], file))
        return made


@dataclass(frozen=True)
class _TextExtraction(_Extraction[str]):
    encoder: TransformersText

    def new(self, items: Sequence[tuple[str, str]], writer: FeatureStoreWriter) -> Sequence[tuple[str, str]]:
        """Return texts by their numbers of tokens, the shortest first."""
        missing = [each for each in items if each[0] not in writer]
        lengths: list[int] = []
        for some in in_batches([text for _, text in missing], _TOKENIZED_AT_ONCE):
            lengths += map(len, self.encoder.tokenize(some))
        return [missing[place] for place in np.argsort(lengths, kind="stable").tolist()]

    def make(self, items: Sequence[tuple[str, str]]) -> Iterator[_Made[str]]:
        encoder = self.encoder.to(self.device)
        with evaluating(encoder):
            for chosen in in_batches(items, self.batch_size):
                tokens = encoder.tokenize([text for _, text in chosen])
                with torch.inference_mode():
                    seen = encoder.token_states(pad(tokens).to(self.device))
                states = zip(chosen, seen.local.cpu(), seen.mask.cpu(), strict=True)
                yield _Made([_Row(item, local[real]) for (item, _), local, real in states])


def _by_workers(
    how: _Extraction[Content], items: Sequence[tuple[str, Content]], workers: Workers
) -> Iterator[_Made[Content]]:
    """Let workers extract items, and yield the same as ``_Extraction.make``."""
    size = max(1, ITEMS_IN_PART // how.batch_size) * how.batch_size
    prepare = replace(how, device=workers.device).part_maker
    for batches in results_in_order([*in_batches(items, size)], prepare, workers):
        yield from batches
