"""Encoding: shards of a list are embedded, here or by workers, and become the files that were asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import torch

from openvse.encoding.listing import Kind, Listing, list_records
from openvse.encoding.parts import Form, Part
from openvse.encoding.shards import (
    Done,
    Settings,
    Shard,
    VectorDtype,
    cut,
    encode_shard,
    find_done,
)
from openvse.encoding.target import Target, target_of
from openvse.errors import DataError, ModelError
from openvse.files import locked, made, write_whole
from openvse.media.listing import LeftOut
from openvse.media.names import escaped
from openvse.model import TwoTower
from openvse.pipeline import Workers
from openvse.tasks.load import load_as

FORMAT = "openvse-encoding"


@dataclass(frozen=True)
class EncodingProgress:
    """How far an encoding has come.

    Attributes:
        done: records that were dealt with, now or by an earlier run.
        total: all records.
        per_s: records dealt with in a second of this run.
    """

    done: int
    total: int
    per_s: float


@dataclass(frozen=True)
class EncodingReport:
    """What encoding did.

    Attributes:
        out: the file or folder of the output.
        kind: images or texts.
        count: records in the output.
        num_embeddings: K, the embeddings of a record.
        dim: D, the width of an embedding.
        kept: records that an earlier run had dealt with.
        failed: id and reason of the records that cannot be used.
        left_out: files that look like images and were not tried, by kind.
    """

    out: Path
    kind: Kind
    count: int
    num_embeddings: int
    dim: int
    kept: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)


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
    progress: Callable[[EncodingProgress], None] | None = None,
) -> EncodingReport:
    """Write the embeddings of images or sentences, with their ids, to files for any other program.

    Each shard of the records is encoded in the same way by whoever does it, and kept when the rest is interrupted. So
    the files are the same bytes whatever the interruptions and the number of workers, for the same model, records,
    batches, number of threads and kind of processor.

    Args:
        model: the model, or its folder or name; workers need the latter.
        data: a folder of images, or a file that lists images or sentences; see ``list_records``.
        out: a file ``NAME.npy`` (its ids go to ``NAME_ids.txt``) or ``NAME.parquet``; or a folder, which gets files
            for each shard. ``NAME.npy.json``, or ``encoding.json`` in the folder, says what was done and left out.
        kind: what a file lists; None recognises it.
        form: of the files in a folder; None is NumPy.
        dtype: how a number is stored.
        batch_size: how many records are embedded at once.
        shard_size: how many records a shard has; an interruption costs at most the work on one shard.
        workers: processes that encode shards; None encodes in this one.
        device: where a model that is loaded here computes.
        overwrite: replace an output of other records or of another model.
        progress: called after each batch, or after each shard of a worker.

    Raises:
        OpenVSEError: there is nothing to encode, the output is of something else, the disk refuses, an embedding holds
            NaN, the records have different numbers of embeddings, or Ray or pyarrow is needed and not installed.
    """
    if min(batch_size, shard_size) < 1:
        raise DataError("batch_size and shard_size must be 1 or more")
    target = target_of(Path(out), form)
    loaded = _loaded(model, device)
    listing = list_records(data, kind=kind, videos=loaded.reads_videos)
    of_each = torch.get_num_threads() if workers is None else workers.threads
    about = loaded.fingerprint, listing.kind, dtype, target.part_form, batch_size, of_each, loaded.device.type
    run = _Run(target, listing, Settings(*about), shard_size, progress)
    if run.is_finished(overwrite):
        return run.report(len(listing.records))
    with made(target.folder), locked(target.folder, "output", DataError):
        if workers is None:
            return run(lambda todo: _here(loaded, run, todo))
        source = _source_for_workers(model)
        return run(lambda todo: _by_workers(run, todo, source, workers))


def _by_workers(
    run: _Run, todo: Sequence[Shard], source: str, workers: Workers
) -> Iterator[tuple[int, Done]]:
    from openvse.encoding.cluster import encode_by_workers

    return encode_by_workers(source, run.job(todo), workers)


def _loaded(model: TwoTower | str | Path, device: str) -> TwoTower:
    return model if isinstance(model, TwoTower) else load_as(TwoTower, model, device=device)


def _source_for_workers(model: TwoTower | str | Path) -> str:
    if isinstance(model, TwoTower):
        raise ModelError("workers load the model themselves: give its folder or name instead of the model")
    return str(Path(model).absolute()) if Path(model).exists() else str(model)


@dataclass(frozen=True)
class Job:
    """What workers are to do.

    Attributes:
        shards: to be encoded.
        settings: how.
        work: the folder of the notes.
        parts: the folder of the parts.
    """

    shards: Sequence[Shard]
    settings: Settings
    work: Path
    parts: Path


def _here(model: TwoTower, run: _Run, todo: Sequence[Shard]) -> Iterator[tuple[int, Done]]:
    """Encode shards in this process."""
    work, parts = run.target.work, run.target.parts
    for shard in todo:
        yield shard.number, encode_shard(model, shard, run.settings, work, parts, run.within)


class _Run:
    """One run of an encoding."""

    def __init__(
        self,
        target: Target,
        listing: Listing,
        settings: Settings,
        shard_size: int,
        progress: Callable[[EncodingProgress], None] | None,
    ) -> None:
        self.target, self.settings = target, settings
        self._listing, self._progress = listing, progress
        self._shards = shards = cut(listing.records, shard_size, settings)
        self._done: dict[int, Done] = {}
        self._count = self._kept = 0
        self._started = time.perf_counter()
        self._digest = sha256("".join(shard.digest for shard in shards).encode()).hexdigest()[:32]

    def job(self, todo: Sequence[Shard]) -> Job:
        """Return what workers need to know."""
        return Job(todo, self.settings, self.target.work.absolute(), self.target.parts.absolute())

    def is_finished(self, overwrite: bool) -> bool:
        """Return whether the output is there already.

        Raises:
            DataError: an output of something else is there, and is not to be overwritten.
        """
        told = self.target.read_manifest()
        if told is None:
            if not overwrite and (taken := self.target.taken()):
                raise DataError(
                    f"{escaped(taken)} is there already and is no output of openvse: choose another --out, or replace "
                    f"it with --overwrite"
                )
            return False
        if told.get("digest") == self._digest:
            parts = [Part(**part) for part in told["parts"]]
            failed = [(each["id"], each["reason"]) for each in told["left_out"]]
            self._done = {0: Done("", _all(parts), failed)}
            return self.target.is_whole(told)
        if not overwrite:
            raise DataError(
                f"{escaped(self.target.out)} holds embeddings of other records, of another model or of other settings: "
                f"choose another --out, or replace them with --overwrite"
            )
        return False

    def __call__(self, work: Callable[[Sequence[Shard]], Iterator[tuple[int, Done]]]) -> EncodingReport:
        """Encode what an earlier run has not, and write the output."""
        self.target.work.mkdir(parents=True, exist_ok=True)
        todo = []
        for shard in self._shards:
            done = find_done(shard, self.target.work, self.target.parts)
            if done is None:
                todo.append(shard)
            else:
                self._add(shard.number, done)
        self._kept = self._count
        self._tell(self._count)
        if todo:
            self.target.forget()
        for number, done in work(todo) if todo else ():
            self._add(number, done)
            self._tell(self._count)
        self._write()
        return self.report(self._kept)

    def within(self, count: int) -> None:
        """Tell the progress within a shard."""
        self._tell(self._count + count)

    def report(self, kept: int) -> EncodingReport:
        """Return what was done."""
        whole = _all([done.part for _, done in sorted(self._done.items())])
        return EncodingReport(
            self.target.out,
            self._listing.kind,
            whole.rows,
            whole.num_embeddings,
            whole.dim,
            kept,
            self._failed(),
            self._listing.left_out,
        )

    def _failed(self) -> list[tuple[str, str]]:
        found = [each for _, done in sorted(self._done.items()) for each in done.failed]
        return list(dict.fromkeys([*self._listing.failed, *found]))

    def _add(self, number: int, done: Done) -> None:
        self._done[number] = done
        self._count += len(self._shards[number].records)

    def _tell(self, count: int) -> None:
        if self._progress is not None:
            passed = max(1e-9, time.perf_counter() - self._started)
            self._progress(EncodingProgress(count, len(self._listing.records), (count - self._kept) / passed))

    def _write(self) -> None:
        """Join the parts if one file is wanted, and say that the output is complete."""
        parts = [self._done[shard.number].part for shard in self._shards]
        whole, failed = _all(parts), self._failed()
        if not whole.rows:
            raise DataError(
                f"none of the {len(self._listing.records)} {self._listing.kind} can be used; the first is "
                f"{failed[0][0]}: {failed[0][1]}"
            )
        used = [part for part in parts if part.rows]
        written = self.target.join(used, self.settings.dtype, self._good(), self._listing.kind)
        manifest = {
            "format": FORMAT,
            "version": 1,
            "digest": self._digest,
            "model": self.settings.model,
            "kind": self._listing.kind,
            "count": whole.rows,
            "num_embeddings": whole.num_embeddings,
            "dim": whole.dim,
            "dtype": self.settings.dtype,
            "parts": [vars(part) for part in written],
            "left_out": [{"id": item, "reason": reason} for item, reason in failed],
        }
        write_whole(self.target.manifest, json.dumps(manifest, indent=1) + "\n")
        self.target.tidy(written)

    def _good(self) -> Iterator[tuple[list[str], list[str]]]:
        """Yield ids and sources of the records that were encoded, shard by shard."""
        for shard in self._shards:
            bad = {item for item, _ in self._done[shard.number].failed}
            good = [record for record in shard.records if record.id not in bad]
            if good:
                yield [record.id for record in good], [str(record.source) for record in good]


def _all(parts: Sequence[Part]) -> Part:
    """Return the counts of all parts together.

    Raises:
        ModelError: their embeddings differ in shape.
    """
    shapes = {(part.num_embeddings, part.dim) for part in parts if part.rows}
    if len(shapes) > 1:
        raise ModelError(f"the embeddings have different shapes, {sorted(shapes)}: take another model")
    shape = next(iter(shapes), (0, 0))
    return Part(sum(part.rows for part in parts), *shape)
