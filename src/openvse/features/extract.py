"""Run a backbone over images and keep its local features in a store."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from openvse.backbones import Backbone
from openvse.errors import BadImageError, DataError, ModelError
from openvse.features.extract_shards import (
    ITEMS_IN_SHARD,
    Extract,
    Failures,
    extract_in_shards,
    forget_shards,
)
from openvse.features.layout import StoreDtype
from openvse.features.sources import SourceLog
from openvse.features.writer import FeatureStoreWriter
from openvse.media.packed import ImageFile
from openvse.model import evaluating
from openvse.types import Features
from openvse.workers import Workers

COMMIT_SECONDS = 5.0
"""How many seconds of work a kill can lose at most."""

BATCHES_AHEAD = 2
"""The largest number of decoded batches that wait for the backbone."""


@dataclass(frozen=True)
class ExtractionProgress:
    """The progress of an extraction.

    Attributes:
        done: the number of images that are finished: stored now or before, or found bad.
        total: the number of images that were asked for.
        images_per_s: the number of images per second in this run.
        eta_s: the seconds left at that rate.
        unit: the name of what is counted, if it is not images.
    """

    done: int
    total: int
    images_per_s: float
    eta_s: float
    unit: str = "images"


@dataclass
class ExtractionReport:
    """The result of an extraction.

    Attributes:
        done: the number of images whose features were added.
        skipped_existing: the number of images that the store already had.
        failed: path and reason of each image that cannot be used.
        seconds: the wall time.
        unit: the name of what is counted, if it is not images.
    """

    done: int = 0
    skipped_existing: int = 0
    failed: list[tuple[ImageFile, str]] = field(default_factory=list)
    seconds: float = 0.0
    unit: str = "images"

    @property
    def images_per_s(self) -> float:
        """The number of images per second; those that the store already had do not count."""
        return (self.done + len(self.failed)) / self.seconds if self.seconds else 0.0

    def progress(self, total: int) -> ExtractionProgress:
        """Return the progress of a run over ``total`` images."""
        done = self.skipped_existing + self.done + len(self.failed)
        rate = self.images_per_s
        return ExtractionProgress(done, total, rate, (total - done) / rate if rate else 0.0, self.unit)


class Pace:
    """Keeps the time of an extraction: tells its progress after each batch, and commits every few seconds.

    Args:
        report: the result so far, which the extraction fills in.
        total: the number of items that were asked for.
        progress: a function that is called after each batch, and once if there is nothing to do.
    """

    def __init__(
        self, report: ExtractionReport, total: int, progress: Callable[[ExtractionProgress], None] | None
    ) -> None:
        self.report = report
        self._total, self._progress = total, progress
        self._started = self._committed = time.perf_counter()

    def after_batch(self, writer: FeatureStoreWriter) -> None:
        """Tell the progress, and commit if the last commit was a while ago."""
        now = time.perf_counter()
        self.report.seconds = now - self._started
        self._tell()
        if now - self._committed > COMMIT_SECONDS:
            writer.commit()
            self._committed = time.perf_counter()

    def end(self) -> ExtractionReport:
        """Return the report once the store is closed."""
        self.report.seconds = time.perf_counter() - self._started
        if not self.report.done and not self.report.failed:
            self._tell()
        return self.report

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.report.progress(self._total))


def extract_features(
    backbone: Backbone,
    images: Sequence[tuple[str, ImageFile]],
    store: Path,
    *,
    batch_size: int = 32,
    device: torch.device | str = "cpu",
    num_workers: int = 1,
    dtype: StoreDtype = "float16",
    workers: Workers | None = None,
    progress: Callable[[ExtractionProgress], None] | None = None,
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
    _check_unique(images)
    pace = Pace(ExtractionReport(), len(images), progress)
    report, here = pace.report, _Extraction(backbone, batch_size, device, num_workers, dtype)
    with here.open(store) as writer, SourceLog(store, anew=not len(writer)) as sources:
        new = [(item, path) for item, path in images if item not in writer]
        report.skipped_existing = len(images) - len(new)
        parts = here(new, writer, sources) if workers is None else here.share(new, writer, sources, workers)
        for added, failed in parts:
            report.done += added
            report.failed += failed
            pace.after_batch(writer)
        if workers is None:
            forget_shards(store)
    return pace.end()


@dataclass(frozen=True)
class _Extraction:
    """How features are extracted: the arguments of ``extract_features``."""

    backbone: Backbone
    batch_size: int
    device: torch.device | str
    num_workers: int
    dtype: StoreDtype

    def open(self, store: Path) -> FeatureStoreWriter:
        """Create or continue a store."""
        if self.backbone.fingerprint is None:
            raise ModelError("this encoder only reads stored features: extract with one that has a backbone")
        return FeatureStoreWriter(
            store,
            fingerprint=self.backbone.fingerprint,
            dim=self.backbone.feature_dim,
            dtype=self.dtype,
            boxes=self.backbone.gives_boxes,
        )

    def __call__(
        self, images: Sequence[tuple[str, ImageFile]], writer: FeatureStoreWriter, sources: SourceLog
    ) -> Iterator[tuple[int, Failures[ImageFile]]]:
        """Add images batch by batch, and yield how many of each were added, and those that cannot be used."""
        with (
            evaluating(self.backbone.to(self.device)),
            ThreadPoolExecutor(max(1, self.num_workers)) as pool,
        ):
            for batch in _decoded(pool, self.backbone, images, self._items_at_once):
                added = _store(writer, sources, self.backbone, self.device, batch)
                yield added, [(image.path, image.reason) for image in batch if image.pixels is None]

    def share(
        self,
        images: Sequence[tuple[str, ImageFile]],
        writer: FeatureStoreWriter,
        sources: SourceLog,
        workers: Workers,
    ) -> Iterator[tuple[int, Failures[ImageFile]]]:
        """Let workers add images, and yield the same shard by shard."""
        at_once = self._items_at_once
        return extract_in_shards(
            partial(_shard_extractor, replace(self, device=workers.device)),
            images,
            writer,
            sources,
            settings=f"{self.backbone.fingerprint} {at_once} {self.dtype} {workers.threads}",
            shard_size=max(1, ITEMS_IN_SHARD // at_once) * at_once,
            workers=workers,
        )

    @property
    def _items_at_once(self) -> int:
        return max(1, self.batch_size // self.backbone.stored_images)  # each frame of a clip counts


def _shard_extractor(how: _Extraction) -> Extract[ImageFile]:
    return partial(_extract_shard, how)


def _extract_shard(
    how: _Extraction, images: Sequence[tuple[str, ImageFile]], store: Path
) -> Failures[ImageFile]:
    with how.open(store) as writer, SourceLog(store, anew=True) as sources:
        return [each for _, failed in how(images, writer, sources) for each in failed]


@dataclass(frozen=True)
class _Image:
    """An image on its way to the backbone: its pixels and the state of its file, or why there are none."""

    item: str
    path: ImageFile
    pixels: Tensor | None
    status: os.stat_result | None = None
    reason: str = ""


def _decoded(
    pool: ThreadPoolExecutor, backbone: Backbone, images: Sequence[tuple[str, ImageFile]], batch_size: int
) -> Iterator[list[_Image]]:
    """Yield the images in batches, in their order, while the pool decodes the next ones."""
    jobs = (pool.submit(_decode, backbone, item, path) for item, path in images)
    waiting: deque[Future[_Image]] = deque(islice(jobs, BATCHES_AHEAD * batch_size))
    while waiting:
        batch: list[_Image] = []
        while waiting and len(batch) < batch_size:
            batch.append(waiting.popleft().result())
            waiting.extend(islice(jobs, 1))
        yield batch


def _decode(backbone: Backbone, item: str, path: ImageFile) -> _Image:
    try:
        status = path.stat() if isinstance(path, Path) and path.exists() else None  # before it is read
        return _Image(item, path, backbone.read(path, to_store=True), status)
    except BadImageError as error:
        return _Image(item, path, None, reason=str(error))


@torch.inference_mode()
def _store(
    writer: FeatureStoreWriter,
    sources: SourceLog,
    backbone: Backbone,
    device: torch.device | str,
    batch: Sequence[_Image],
) -> int:
    """Encode what could be decoded, add it to the store and return how many items that were."""
    good = [image for image in batch if image.pixels is not None]
    if good:
        inputs = backbone.collate([image.pixels for image in good if image.pixels is not None]).to(device)
        seen: Features = backbone(inputs)
        boxes = [None] * len(good) if seen.boxes is None else seen.boxes.cpu()
        rows = zip(seen.local.cpu(), seen.mask.cpu(), boxes, strict=True)
        for image, (local, real, found) in zip(good, rows, strict=True):
            if isinstance(image.path, Path) and image.status is not None:
                sources.add(image.item, image.path, image.status)
            writer.add(image.item, local[real], None if found is None else found[real])
    return len(good)


def _check_unique(images: Sequence[tuple[str, ImageFile]]) -> None:
    paths: dict[str, ImageFile] = {}
    for item, path in images:
        if item in paths:
            raise DataError(
                f"id {item!r} is used for {paths[item]} and for {path}: give each image its own id"
            )
        paths[item] = path
