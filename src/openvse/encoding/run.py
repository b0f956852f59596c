"""Encoding: shards of a list are embedded, here or by workers, and become the files that were asked for.

A shard is encoded in the same way by whoever does it. Its files and a note that they are complete stay when the rest
is interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from openvse.encoding.listing import EncodingRecord, Kind, RecordList, list_records
from openvse.encoding.output import Form, ShardFiles, Target, target_of, write_shard
from openvse.errors import DataError, ModelError
from openvse.files import locked, made, parse_json, read_text, write_whole
from openvse.media.listing import LeftOut
from openvse.media.names import escaped
from openvse.model import TwoTower
from openvse.pipeline import Make, Pace, Shard, Workers, WorkProgress, cut, decoded, in_batches, results_of
from openvse.tasks.load import load_as, load_same
from openvse.types import EmbeddingSet

VectorDtype = Literal["float16", "float32"]
Vectors = Float[np.ndarray, "B K D"]


@dataclass(frozen=True)
class EncodingReport:
    """The result of an encoding.

    Attributes:
        out: the file or folder of the output.
        kind: images or texts.
        count: the number of records in the output.
        num_embeddings: K, the embeddings of a record.
        dim: D, the width of an embedding.
        earlier: the number of records that an earlier run had finished.
        failed: id and reason of the records that cannot be used.
        left_out: files that look like images and were not tried, by kind.
    """

    out: Path
    kind: Kind
    count: int
    num_embeddings: int
    dim: int
    earlier: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)


@dataclass(frozen=True)
class EncodingSettings:
    """What the numbers of an encoding depend on besides the records.

    Attributes:
        model: the fingerprint of the model.
        kind: images or texts.
        dtype: the type of a stored number.
        form: the form of the shards.
        batch_size: the number of records that are embedded at once.
        threads: the CPU threads of each process, on which the last bits of a result depend.
    """

    model: str
    kind: Kind
    dtype: VectorDtype
    form: Form
    batch_size: int
    threads: int
    device: str


@dataclass(frozen=True)
class EncodedShard:
    """A shard that has been encoded.

    Attributes:
        failed: id and reason of the records that cannot be used.
    """

    digest: str
    files: ShardFiles
    failed: list[tuple[str, str]]


def encode(
    model: TwoTower | str | Path,
    data: str | Path,
    out: str | Path,
    *,
    kind: Kind | None = None,
    form: Form | None = None,
    dtype: VectorDtype = "float32",
    batch_size: int = 64,
    shard_size: int = 1024,
    workers: Workers | None = None,
    device: str = "cpu",
    overwrite: bool = False,
    progress: Callable[[WorkProgress], None] | None = None,
) -> EncodingReport:
    """Write the embeddings of images or sentences, with their ids, to files for any other program.

    The files are the same bytes whatever the interruptions and the number of workers, for the same model, records,
    batches, number of threads and kind of processor.

    Args:
        model: the model, or its folder or name; workers need the latter.
        data: a folder of images, or a file that lists images or sentences; see ``list_records``.
        out: a file ``NAME.npy`` (its ids go to ``NAME_ids.txt``) or ``NAME.parquet``; or a folder, which gets files
            for each shard. ``NAME.npy.json``, or ``encoding.json`` in the folder, says what was done and left out.
        kind: what a file lists; None recognises it.
        form: the form of the files in a folder; None is NumPy.
        dtype: the type of a stored number.
        batch_size: the number of records that are embedded at once.
        shard_size: the number of records in a shard; an interruption costs at most the work on one shard.
        workers: processes that encode shards; None encodes in this one.
        device: the device of a model that is loaded here.
        overwrite: replace an output of other records or of another model.
        progress: called after each batch, or after each shard of a worker.

    Raises:
        OpenVSEError: there is nothing to encode, the output is of something else, the disk refuses, an embedding holds
            NaN, the records have different numbers of embeddings, or Ray or pyarrow is needed and not installed.
    """
    if min(batch_size, shard_size) < 1:
        raise DataError("batch_size and shard_size must be 1 or more")
    target = target_of(Path(out), form)
    loaded = model if isinstance(model, TwoTower) else load_as(TwoTower, model, device=device)
    records = list_records(data, kind=kind, videos=loaded.reads_videos)
    of_each = torch.get_num_threads() if workers is None else workers.threads
    numbers = batch_size, of_each, loaded.device.type
    settings = EncodingSettings(loaded.fingerprint, records.kind, dtype, target.shard_form, *numbers)
    run = _Run(target, records, settings, shard_size)
    report = run.finished(overwrite)
    if report is not None and not target.work.exists():
        return report
    with made(target.folder), locked(target.folder, "output", DataError):
        if report is not None:  # an earlier run was stopped while it tidied
            target.tidy()
            return report
        return run(loaded, model, workers, progress)


def _source(model: TwoTower | str | Path) -> str:
    """Return the name under which workers find a model."""
    if isinstance(model, TwoTower):
        raise ModelError("workers load the model themselves: give its folder or name instead of the model")
    return str(Path(model).absolute()) if Path(model).exists() else str(model)


def _load_encoder(
    source: str, device: str, settings: EncodingSettings, target: Target
) -> Make[EncodingRecord, EncodedShard]:
    """Load the model of a worker."""
    return _ShardEncoder(load_same(source, settings.model, device), settings, target)


@dataclass(frozen=True)
class _ShardEncoder:
    """Encodes shards in one process.

    Attributes:
        settings: how it encodes.
        target: where the files go.
        after_batch: called after each batch with the number of records of the shard that are finished.
    """

    model: TwoTower
    settings: EncodingSettings
    target: Target
    after_batch: Callable[[int], None] | None = None

    def __call__(self, shard: Shard[EncodingRecord]) -> EncodedShard:
        """Encode a shard and write its files, and then a note that they are complete.

        Raises:
            DiskError: the disk refuses.
            ModelError: an embedding holds NaN, or the records have different numbers of embeddings.
        """
        failed: list[tuple[str, str]] = []
        ids: list[str] = []
        vectors: list[Vectors] = []
        for records, embedded in self._batches(shard.items, failed):
            if embedded is not None:
                ids += [record.id for record in records]
                vectors.append(_stored(embedded, records, self.settings.dtype))
            if self.after_batch is not None:
                self.after_batch(len(ids) + len(failed))
        texts = [str(record.source) for record in shard.items] if self.settings.kind == "texts" else None
        joined = np.concatenate(vectors) if vectors else np.empty((0, 0, 0), np.dtype(self.settings.dtype))
        files = write_shard(self.target.work, self.settings.form, shard.number, ids, joined, texts)
        done = EncodedShard(shard.digest, files, failed)
        write_whole(_note(self.target, shard), json.dumps(asdict(done)))
        return done

    def _batches(
        self, records: Sequence[EncodingRecord], failed: list[tuple[str, str]]
    ) -> Iterator[tuple[Sequence[EncodingRecord], Vectors | None]]:
        """Embed records in batches; images that cannot be used leave a gap in theirs, and are noted."""
        batches = in_batches(records, self.settings.batch_size)
        if self.settings.kind == "texts":
            for some in batches:
                sentences = [str(record.source) for record in some]
                yield some, _vectors(self.model.encode_text(sentences, self.settings.batch_size))
            return

        def read(record: EncodingRecord) -> Tensor:
            return self.model.read_image(Path(record.source))

        for batch in decoded(batches, read, lambda record: record.source):
            failed += [(record.id, reason) for record, reason in batch.failed]
            yield batch.items, _vectors(self.model.encode_pixels(batch.values)) if batch.items else None


def _vectors(embedded: EmbeddingSet) -> Vectors:
    if not embedded.mask.all():
        raise ModelError(
            "the records have different numbers of embeddings, as this model compares pairs: take a model that gives "
            "each image and sentence a fixed number"
        )
    return embedded.vectors.float().numpy()


def _stored(vectors: Vectors, records: Sequence[EncodingRecord], dtype: VectorDtype) -> Vectors:
    with np.errstate(over="ignore"):
        stored = vectors.astype(np.dtype(dtype))
    bad = np.flatnonzero(~np.isfinite(stored).all(axis=(1, 2)))
    if len(bad):
        raise ModelError(
            f"the embedding of {records[bad[0]].id} holds NaN or infinite numbers as {dtype}: check the weights of the "
            f"model"
        )
    return stored


def _note(target: Target, shard: Shard[EncodingRecord]) -> Path:
    return target.work / f"{shard.number:05d}.json"


class _Run:
    """One run of an encoding."""

    def __init__(
        self, target: Target, records: RecordList, settings: EncodingSettings, shard_size: int
    ) -> None:
        def describe(record: EncodingRecord) -> str:
            return f"{record.id}\0{record.source if settings.kind == 'texts' else record.state}"

        self._settings, self._target, self._records = settings, target, records
        about = json.dumps(asdict(settings), sort_keys=True)
        self._shards = cut(records.records, shard_size, about, describe)
        self._digest = sha256("".join(shard.digest for shard in self._shards).encode()).hexdigest()[:32]

    def finished(self, overwrite: bool) -> EncodingReport | None:
        """Return the report of an existing output, or None; raise DataError if an output of other data is there."""
        target, manifest = self._target, self._target.read_manifest()
        if manifest is not None and manifest.get("digest") == self._digest:
            parts = [ShardFiles(**files) for files in manifest["parts"]]
            if not all(target.holds(part.sizes) for part in parts):
                return None
            failed = [(each["id"], each["reason"]) for each in manifest["left_out"]]
            return self._report(parts, failed, len(self._records.records))
        if overwrite:
            return None
        if manifest is not None:
            raise DataError(
                f"{escaped(target.out)} holds embeddings of other records, of another model or of other settings: "
                f"choose another --out, or replace them with --overwrite"
            )
        if taken := target.taken():
            raise DataError(
                f"{escaped(taken)} is there already and is no output of openvse: choose another --out, or replace "
                f"it with --overwrite"
            )
        return None

    def __call__(
        self,
        model: TwoTower,
        named: TwoTower | str | Path,
        workers: Workers | None,
        progress: Callable[[WorkProgress], None] | None,
    ) -> EncodingReport:
        """Encode the shards that an earlier run has not, and write the output.

        Args:
            named: what the caller gave as the model.
            workers: the processes that encode; None encodes in this one.
            progress: called with the progress.
        """
        self._target.work.mkdir(parents=True, exist_ok=True)
        earlier = self._earlier_shards()
        before = sum(len(self._shards[number].items) for number in earlier)
        pace = Pace(len(self._records.records), progress, before=before, unit="items")
        about = self._settings, self._target
        prepare: Callable[[], Make[EncodingRecord, EncodedShard]]
        if workers is None:
            prepare = partial(_ShardEncoder, model, *about, pace.tell)
        else:
            prepare = partial(_load_encoder, _source(named), workers.device, *about)
        pace.tell()
        done = []
        for shard, result in results_of(self._shards, prepare, workers, earlier=earlier):
            done.append(result)
            if shard.number not in earlier:
                pace.add(len(shard.items))
        return self._write(done, before)

    def _earlier_shards(self) -> dict[int, EncodedShard]:
        """Return the shards that an earlier run has encoded, by their numbers."""
        earlier = {}
        for shard in self._shards:
            try:
                note = parse_json(read_text(_note(self._target, shard)))
                failed = [(item, reason) for item, reason in note["failed"]]
                done = EncodedShard(note["digest"], ShardFiles(**note["files"]), failed)
            except (OSError, DataError, ValueError, KeyError, TypeError):
                continue
            if done.digest == shard.digest and self._target.holds(done.files.sizes):
                earlier[shard.number] = done
        return earlier

    def _write(self, done: Sequence[EncodedShard], earlier: int) -> EncodingReport:
        """Put the output at its place, and say that it is complete."""
        failed = [each for shard in done for each in shard.failed]
        report = self._report([shard.files for shard in done], failed, earlier)
        if not report.count:
            raise DataError(
                f"none of the {len(self._records.records)} {report.kind} can be used; the first is "
                f"{report.failed[0][0]}: {report.failed[0][1]}"
            )
        shape = {"count": report.count, "num_embeddings": report.num_embeddings, "dim": report.dim}
        left_out = [{"id": item, "reason": reason} for item, reason in report.failed]
        about = {"digest": self._digest, "model": self._settings.model, "kind": report.kind, **shape}
        about |= {"dtype": self._settings.dtype, "left_out": left_out}
        self._target.write([shard.files for shard in done if shard.files.rows], self._good(done), about)
        return report

    def _good(self, done: Sequence[EncodedShard]) -> list[tuple[list[str], list[str]]]:
        """Return ids and sources of the records that were encoded, shard by shard."""
        parts = []
        for shard, result in zip(self._shards, done, strict=True):
            bad = {item for item, _ in result.failed}
            if good := [record for record in shard.items if record.id not in bad]:
                parts.append(([record.id for record in good], [str(record.source) for record in good]))
        return parts

    def _report(
        self, files: Sequence[ShardFiles], failed: Sequence[tuple[str, str]], earlier: int
    ) -> EncodingReport:
        """Return the report; raise ModelError if the embeddings of the shards differ in shape."""
        shapes = {(each.num_embeddings, each.dim) for each in files if each.rows}
        if len(shapes) > 1:
            raise ModelError(f"the embeddings have different shapes, {sorted(shapes)}: take another model")
        rows, shape = sum(each.rows for each in files), next(iter(shapes), (0, 0))
        failures = list(dict.fromkeys([*self._records.failed, *failed]))
        about = self._target.out, self._records.kind, rows, *shape
        return EncodingReport(*about, earlier, failures, self._records.left_out)
