"""Extraction: run a backbone over images, or a frozen text model over texts, and keep their features in a store.

Several processes make whole shards of a store, which are joined in their order:

    shards/DIGEST/     a store with the features of one shard, while it is made and until it is joined
    shards/DIGEST.json a note that the shard is complete: the last id in it, and the ids that cannot be used

A shard is a whole number of batches, so it holds the bytes that one process would have written. A note outlives its
shard until the end: after a stop, the items that could not be used are tried again after all others, so that the other
shards stay what they were.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from openvse.backbones import Backbone
from openvse.encoders import TokenStatesEncoder
from openvse.errors import DataError, ModelError
from openvse.features.layout import MANIFEST, StoreDtype, StoreManifest, read_ids
from openvse.features.sources import SourceLog
from openvse.features.store import FeatureStore
from openvse.features.writer import FeatureStoreWriter
from openvse.files import read_text, write_whole, writing
from openvse.functional import pad
from openvse.media.packed import ImageFile
from openvse.model import evaluating
from openvse.pipeline import (
    DECODERS,
    Make,
    Pace,
    Shard,
    Workers,
    WorkProgress,
    cut,
    decoded,
    in_batches,
    results_of,
)
from openvse.types import Features

SHARDS = "shards"
ITEMS_IN_SHARD = 1024

_TOKENIZED_AT_ONCE = 1 << 14

Content = TypeVar("Content")

Failures = list[tuple[Content, str]]
"""What cannot be used, each with the reason."""


@dataclass
class ExtractionReport:
    """The result of an extraction.

    Attributes:
        done: the number of images whose features were added.
        skipped_existing: the number of images that the store already had.
        failed: path and reason of each image that cannot be used.
        stale: a line about images that the store already had and whose file has changed since, or "".
        seconds: the wall time.
        unit: the name of what is counted, if it is not images.
    """

    done: int = 0
    skipped_existing: int = 0
    failed: Failures[ImageFile] = field(default_factory=list)
    stale: str = ""
    seconds: float = 0.0
    unit: str = "images"

    @property
    def images_per_s(self) -> float:
        """The number of images per second; those that the store already had do not count."""
        return (self.done + len(self.failed)) / self.seconds if self.seconds else 0.0


def extract_features(
    backbone: Backbone,
    images: Sequence[tuple[str, ImageFile]],
    store: Path,
    *,
    batch_size: int = 32,
    device: torch.device | str = "cpu",
    num_workers: int = DECODERS,
    dtype: StoreDtype = "float16",
    workers: Workers | None = None,
    progress: Callable[[WorkProgress], None] | None = None,
) -> ExtractionReport:
    """Add the local features of images to a feature store; images that it already has are skipped.

    Images are decoded in threads while the backbone computes, since decoders release Python's lock. The store is
    committed every few seconds and whenever the function ends, so that an interrupted extraction continues where it
    was. An image that cannot be used is reported and left out; the next run tries it again.

    Args:
        backbone: the backbone that makes the features; it is moved to ``device``.
        images: identifier and path of each image.
        store: the folder of the store, which is created if it is missing.
        batch_size: the number of images encoded at once; each frame of a clip counts.
        device: the device on which the backbone runs.
        num_workers: the number of decoding threads; 0 counts as 1.
        dtype: the number format of the store.
        workers: processes that extract shards of the images. The store is the same, bit for bit, as with one process
            of as many threads as each of them has.
        progress: a function that is called after each batch, or each shard of a worker, and once if there is nothing
            to do.

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
            raise DataError(
                f"id {item!r} is used for {paths[item]} and for {path}: give each image its own id"
            )
        paths[item] = path
    if backbone.fingerprint is None:
        raise ModelError("this encoder only reads stored features: extract with one that has a backbone")
    how = _ImageExtraction(
        max(1, batch_size // backbone.stored_images),
        device,
        dtype,
        backbone.fingerprint,
        backbone.feature_dim,
        backbone.gives_boxes,
        backbone,
        num_workers,
    )
    report = ExtractionReport()
    report.failed = _extract(how, images, store, workers, progress, report)
    report.stale = FeatureStore.open(store).stale(images) if report.skipped_existing else ""
    return report


def text_id(text: str) -> str:
    """Return the identifier of a text in a store: a digest of its exact characters, which does not reveal the text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def extract_text_features(
    encoder: TokenStatesEncoder,
    texts: Sequence[str],
    store: Path,
    *,
    batch_size: int = 128,
    device: torch.device | str = "cpu",
    dtype: StoreDtype = "float16",
    workers: Workers | None = None,
    progress: Callable[[WorkProgress], None] | None = None,
) -> ExtractionReport:
    """Add the token states of texts to a feature store; equal texts are stored once, and those that it has are skipped.

    Texts are read in the order of their lengths, so that little of a batch is padding. The store is committed every few
    seconds and whenever the function ends, so that an interrupted extraction continues where it was.

    Args:
        encoder: the encoder whose text model makes the states; it is moved to ``device``.
        texts: the sentences.
        store: the folder of the store, which is created if it is missing.
        batch_size: the number of texts encoded at once.
        device: the device on which the text model runs.
        dtype: the number format of the store.
        workers: processes that extract shards of the texts; the store is the same, bit for bit, as with one process of
            as many threads as each of them has.
        progress: a function that is called after each batch, or each shard of a worker, and once if there is nothing
            to do.

    Returns:
        The number of distinct texts that were added, and the number that the store already had.

    Raises:
        OpenVSEError: there are workers, and Ray is not installed, or no cluster answers.
        StoreError: the store belongs to another text model, is being written by another process, or cannot hold the
            states that the text model made.
    """
    wanted = list({text_id(text): text for text in texts}.items())
    report = ExtractionReport(unit="texts")
    made = encoder.fingerprint, encoder.feature_dim, False
    _extract(
        _TextExtraction(batch_size, device, dtype, *made, encoder), wanted, store, workers, progress, report
    )
    return report


def _extract(
    how: _Extraction[Content],
    items: Sequence[tuple[str, Content]],
    store: Path,
    workers: Workers | None,
    progress: Callable[[WorkProgress], None] | None,
    report: ExtractionReport,
) -> Failures[Content]:
    """Add the features of items to a store, fill in the report, and return what cannot be used."""
    failed: Failures[Content] = []
    with how.open(store) as writer, SourceLog(store, anew=not len(writer)) as sources:
        new = how.ordered([each for each in items if each[0] not in writer])
        report.skipped_existing = len(items) - len(new)
        pace = Pace(len(items), progress, before=report.skipped_existing, unit=report.unit)
        parts = how.add(new, writer, sources)
        if workers is not None:
            parts = _by_workers(how, new, writer, sources, workers)
        for added, bad in parts:
            report.done += added
            failed += bad
            pace.add(added + len(bad))
            pace.keep(writer.commit)
        if workers is None:  # what a stopped extraction by workers has left
            shutil.rmtree(store / SHARDS, ignore_errors=True)
    if not new:
        pace.tell()
    report.seconds = pace.seconds
    return failed


@dataclass(frozen=True)
class _Extraction(ABC, Generic[Content]):
    """How the features of items are extracted, with the encoder that makes them; workers receive it."""

    batch_size: int
    device: torch.device | str
    dtype: StoreDtype
    fingerprint: str
    dim: int
    boxes: bool

    def open(self, store: Path) -> FeatureStoreWriter:
        """Create or continue a store."""
        return FeatureStoreWriter(
            store, fingerprint=self.fingerprint, dim=self.dim, dtype=self.dtype, boxes=self.boxes
        )

    def ordered(self, items: Sequence[tuple[str, Content]]) -> Sequence[tuple[str, Content]]:
        """Return items in the order in which they are added."""
        return items

    @abstractmethod
    def add(
        self, items: Sequence[tuple[str, Content]], writer: FeatureStoreWriter, sources: SourceLog
    ) -> Iterator[tuple[int, Failures[Content]]]:
        """Add items batch by batch, and yield how many of each were added, and those that cannot be used."""


@dataclass(frozen=True)
class _ImageExtraction(_Extraction[ImageFile]):
    backbone: Backbone
    num_workers: int

    def add(
        self, items: Sequence[tuple[str, ImageFile]], writer: FeatureStoreWriter, sources: SourceLog
    ) -> Iterator[tuple[int, Failures[ImageFile]]]:
        backbone = self.backbone.to(self.device)

        def read(item: tuple[str, ImageFile]) -> tuple[os.stat_result | None, Tensor]:
            _, path = item
            status = path.stat() if isinstance(path, Path) and path.exists() else None  # before it is read
            return status, backbone.read(path, to_store=True)

        batches = in_batches(items, self.batch_size)
        with evaluating(backbone):
            for batch in decoded(batches, read, lambda item: item[1], threads=self.num_workers):
                if batch.items:
                    self._store(batch.items, batch.values, writer, sources)
                yield len(batch.items), [(path, reason) for (_, path), reason in batch.failed]

    @torch.inference_mode()
    def _store(
        self,
        images: Sequence[tuple[str, ImageFile]],
        decoded_images: Sequence[tuple[os.stat_result | None, Tensor]],
        writer: FeatureStoreWriter,
        sources: SourceLog,
    ) -> None:
        """Add the features of one batch."""
        inputs = self.backbone.collate([pixels for _, pixels in decoded_images]).to(self.device)
        seen: Features = self.backbone(inputs)
        boxes = [None] * len(images) if seen.boxes is None else seen.boxes.cpu()
        rows = zip(seen.local.cpu(), seen.mask.cpu(), boxes, strict=True)
        for (item, path), (status, _), row in zip(images, decoded_images, rows, strict=True):
            local, real, row_boxes = row
            if isinstance(path, Path) and status is not None:
                sources.add(item, path, status)
            writer.add(item, local[real], None if row_boxes is None else row_boxes[real])


@dataclass(frozen=True)
class _TextExtraction(_Extraction[str]):
    encoder: TokenStatesEncoder

    def ordered(self, items: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        """Return texts by their numbers of tokens, the shortest first."""
        lengths: list[int] = []
        for some in in_batches([text for _, text in items], _TOKENIZED_AT_ONCE):
            lengths += map(len, self.encoder.tokenize(some))
        return [items[place] for place in np.argsort(lengths, kind="stable").tolist()]

    def add(
        self, items: Sequence[tuple[str, str]], writer: FeatureStoreWriter, sources: SourceLog
    ) -> Iterator[tuple[int, Failures[str]]]:
        encoder = self.encoder.to(self.device)
        with evaluating(encoder):
            for chosen in in_batches(items, self.batch_size):
                tokens = encoder.tokenize([text for _, text in chosen])
                with torch.inference_mode():
                    seen = encoder.token_states(pad(tokens).to(self.device))
                for (item, _), local, real in zip(chosen, seen.local.cpu(), seen.mask.cpu(), strict=True):
                    writer.add(item, local[real])
                yield len(chosen), []


def _by_workers(
    how: _Extraction[Content],
    items: Sequence[tuple[str, Content]],
    writer: FeatureStoreWriter,
    sources: SourceLog,
    workers: Workers,
) -> Iterator[tuple[int, Failures[Content]]]:
    """Let workers extract items, join their shards to a store, and yield the same as ``_Extraction.add`` for each."""
    folder, at_once = writer.path / SHARDS, how.batch_size
    with writing(folder):
        folder.mkdir(exist_ok=True)
    tried = _tried(folder, writer)
    shards = cut(
        sorted(items, key=lambda item: item[0] in tried),  # stable
        max(1, ITEMS_IN_SHARD // at_once) * at_once,
        f"{how.fingerprint} {at_once} {how.dtype} {workers.threads}",
        lambda item: f"{item[0]}\0{item[1]}",
    )
    earlier: dict[int, Failures[Content]] = {
        shard.number: []
        for shard in shards
        if (folder / shard.digest).exists() and _note(folder / shard.digest).exists()
    }
    prepare = partial(_shard_maker, replace(how, device=workers.device), folder)
    for shard, failed in results_of(shards, prepare, workers, earlier=earlier):
        yield _join(folder / shard.digest, writer, sources), failed
    shutil.rmtree(folder)


def _shard_maker(how: _Extraction[Content], folder: Path) -> Make[tuple[str, Content], Failures[Content]]:
    return partial(_make_shard, how, folder)


def _make_shard(
    how: _Extraction[Content], folder: Path, shard: Shard[tuple[str, Content]]
) -> Failures[Content]:
    """Make the store of a shard from its beginning, and then note that it is complete."""
    store = folder / shard.digest
    with writing(store):
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir(parents=True)
        with how.open(store) as writer, SourceLog(store, anew=True) as sources:
            failed = [each for _, bad in how.add(shard.items, writer, sources) for each in bad]
        ids = _ids(store)
        bad_ids = sorted({item for item, _ in shard.items} - set(ids))
        write_whole(_note(store), json.dumps({"last": ids[-1] if ids else None, "failed": bad_ids}))
    return failed


def _join(shard: Path, writer: FeatureStoreWriter, sources: SourceLog) -> int:
    """Move the content of a shard to the store, and return the number of its items."""
    added = len(_ids(shard))
    if added:
        sources.copy(shard)
        writer.append(shard)
        writer.commit()
    with writing(shard):
        shutil.rmtree(shard)
    return added


def _tried(folder: Path, writer: FeatureStoreWriter) -> frozenset[str]:
    """Return the items that could not be used, of the shards that have been joined."""
    tried: list[str] = []
    for path in folder.glob("*.json"):
        try:
            note = json.loads(read_text(path))
        except (OSError, ValueError):
            continue
        if note["last"] is None or note["last"] in writer:
            tried += note["failed"]
    return frozenset(tried)


def _note(shard: Path) -> Path:
    return shard.with_suffix(".json")


def _ids(folder: Path) -> tuple[str, ...]:
    return read_ids(folder, StoreManifest.read(folder)) if (folder / MANIFEST).exists() else ()
