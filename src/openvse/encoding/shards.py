"""Shards: some records each, encoded in the same way by whoever does it, and kept when the rest is interrupted."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from openvse.encoding.listing import Kind, Record
from openvse.encoding.parts import Form, Part, write_part
from openvse.errors import BadImageError, ModelError
from openvse.files import write_whole
from openvse.model import TwoTower
from openvse.model.two_tower import embed

VectorDtype = Literal["float16", "float32"]

_AHEAD = 2  # decoded batches that wait for the model
_DECODERS = 2


@dataclass(frozen=True)
class Settings:
    """What the numbers of an encoding depend on beside the records.

    Attributes:
        model: fingerprint of the model.
        kind: images or texts.
        dtype: how a number is stored.
        form: of the parts.
        batch_size: how many records are embedded at once.
        threads: of each process, on which the last bits of a result depend.
        device: where the model computes.
    """

    model: str
    kind: Kind
    dtype: VectorDtype
    form: Form
    batch_size: int
    threads: int
    device: str


@dataclass(frozen=True)
class Shard:
    """Some records.

    Attributes:
        number: 0 for the first.
        records: in their order.
        digest: of the records and of all that their embeddings depend on.
    """

    number: int
    records: tuple[Record, ...]
    digest: str


@dataclass(frozen=True)
class Done:
    """A shard that has been encoded.

    Attributes:
        digest: see ``Shard``.
        part: its file.
        failed: id and reason of the records that cannot be used.
    """

    digest: str
    part: Part
    failed: list[tuple[str, str]]


def cut(records: Sequence[Record], size: int, settings: Settings) -> list[Shard]:
    """Cut records into shards of a size; the last one may be smaller."""
    shards = []
    about = json.dumps(asdict(settings), sort_keys=True)
    for number, start in enumerate(range(0, len(records), size)):
        some = tuple(records[start : start + size])
        digest = hashlib.sha256(about.encode())
        for record in some:
            line = f"{record.id}\0{record.source if settings.kind == 'texts' else record.state}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        shards.append(Shard(number, some, digest.hexdigest()[:32]))
    return shards


def find_done(shard: Shard, work: Path, folder: Path) -> Done | None:
    """Return what an earlier run made of a shard; None where it made nothing, or of other records."""
    try:
        told = json.loads(_note(work, shard.number).read_text(encoding="utf-8"))
        done = Done(told["digest"], Part(**told["part"]), [(item, reason) for item, reason in told["failed"]])
        whole = all((folder / name).stat().st_size == size for name, size in done.part.sizes.items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return done if whole and done.digest == shard.digest else None


def encode_shard(
    model: TwoTower,
    shard: Shard,
    settings: Settings,
    work: Path,
    folder: Path,
    after_batch: Callable[[int], None] | None = None,
) -> Done:
    """Encode a shard and write its part, and then a note that it is done.

    Args:
        model: the model.
        shard: the records.
        settings: how they are encoded.
        work: the folder of the notes.
        folder: the folder of the parts.
        after_batch: called with the number of records that were dealt with.

    Raises:
        DiskError: the disk refuses.
        ModelError: an embedding holds NaN, or the records have different numbers of embeddings.
    """
    failed: list[tuple[str, str]] = []
    ids: list[str] = []
    vectors: list[Float[np.ndarray, "B K D"]] = []
    batches = _texts if settings.kind == "texts" else _images
    for records, embedded in batches(model, shard.records, settings.batch_size, failed):
        if records:
            ids += [record.id for record in records]
            vectors.append(_checked(embedded, records, settings.dtype))
        if after_batch is not None:
            after_batch(len(ids) + len(failed))
    texts = None
    if settings.kind == "texts":
        texts = [str(record.source) for record in shard.records]
    joined = np.concatenate(vectors) if vectors else np.empty((0, 0, 0), np.dtype(settings.dtype))
    part = write_part(folder, settings.form, shard.number, ids, joined, texts)
    done = Done(shard.digest, part, failed)
    write_whole(_note(work, shard.number), json.dumps(asdict(done)))
    return done


def _note(work: Path, number: int) -> Path:
    return work / f"{number:05d}.json"


Batches = Iterator[tuple[Sequence[Record], Float[np.ndarray, "B K D"]]]


def _texts(
    model: TwoTower, records: Sequence[Record], batch_size: int, failed: list[tuple[str, str]]
) -> Batches:
    for start in range(0, len(records), batch_size):
        some = records[start : start + batch_size]
        embedded = model.encode_text([str(record.source) for record in some], batch_size)
        yield some, _vectors(embedded.vectors, embedded.mask)


def _images(
    model: TwoTower, records: Sequence[Record], batch_size: int, failed: list[tuple[str, str]]
) -> Batches:
    """Embed images in the batches in which they stand, while the next ones are decoded; bad ones leave a gap."""
    backbone = model.image.encoder.backbone

    def read(record: Record) -> Tensor | str:
        try:
            return backbone.read(Path(record.source))
        except BadImageError as error:
            return str(error).removeprefix(f"{record.source}: ")

    with ThreadPoolExecutor(_DECODERS) as pool:
        jobs = ((record, pool.submit(read, record)) for record in records)
        waiting: deque[tuple[Record, Future[Tensor | str]]] = deque(islice(jobs, _AHEAD * batch_size))
        while waiting:
            good: list[tuple[Record, Tensor]] = []
            for _ in range(min(batch_size, len(waiting))):
                record, job = waiting.popleft()
                seen = job.result()
                waiting.extend(islice(jobs, 1))
                if isinstance(seen, str):
                    failed.append((record.id, seen))
                else:
                    good.append((record, seen))
            if not good:
                yield [], np.empty((0, 0, 0))
                continue
            inputs = backbone.collate([pixels for _, pixels in good])
            embedded = embed(model.image, [(np.arange(len(good)), inputs)], model.device)
            yield [record for record, _ in good], _vectors(embedded.vectors, embedded.mask)


def _vectors(vectors: Tensor, mask: Tensor) -> Float[np.ndarray, "B K D"]:
    if not mask.all():
        raise ModelError(
            "the records have different numbers of embeddings, as this model compares pairs: take a model that gives "
            "each image and sentence a fixed number"
        )
    return vectors.float().numpy()


def _checked(
    vectors: Float[np.ndarray, "B K D"], records: Sequence[Record], dtype: VectorDtype
) -> Float[np.ndarray, "B K D"]:
    with np.errstate(over="ignore"):
        stored = vectors.astype(np.dtype(dtype))
    bad = np.flatnonzero(~np.isfinite(stored).all(axis=(1, 2)))
    if len(bad):
        raise ModelError(
            f"the embedding of {records[bad[0]].id} holds NaN or infinite numbers as {dtype}: check the weights of the "
            f"model"
        )
    return stored
