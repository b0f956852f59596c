"""Encoding: an index of the records is made beside the output, and its embeddings are written as files.

The index decides what to decode, embed, share with workers and keep after a stop. The output is a NumPy array beside
its ids, a Parquet file, or a folder of Parquet files. The same content makes the same bytes. The manifest names the
files of a set, so new ids never accompany old embeddings. Encoding is no option of ``index``, because half of the
options there keep an index up to date, and the ids of a list need not be paths.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from jaxtyping import Float

from openvse.datasets.folder import TABLE_SUFFIXES, names_in, read_entries
from openvse.datasets.registry import columns_of, open_corpus
from openvse.datasets.rows import CAPTION_FIELDS, IMAGE_FIELDS, Columns, captions_of, refuse_outside
from openvse.errors import DataError, IndexDamagedError, ModelError, TextError, importing
from openvse.evaluation.embed import drawn_for_bank
from openvse.files import parse_json, read_lines, read_text, replacing_files, settle, whole_characters
from openvse.indexing.database import Root
from openvse.indexing.embedding import Embedder, Sharing, keep_batches
from openvse.indexing.index import Index
from openvse.indexing.manifest import Item, VectorDtype
from openvse.indexing.scanning import Candidate
from openvse.indexing.writer import IndexFolder, IndexWriter
from openvse.media.listing import LeftOut, each_once, kind_left_out, list_media
from openvse.media.matching import find_files
from openvse.media.names import escaped, is_image, is_video_name
from openvse.model.two_tower import TwoTower
from openvse.pipeline import Pace, Workers, WorkProgress, in_batches, remaining
from openvse.scoring.hubs import MOST_TEXTS
from openvse.tasks.load import load_as, load_same

RecordKind = Literal["images", "texts"]


@dataclass(frozen=True)
class RecordList:
    """The records of an encoding, ordered by id for a folder and by line for a file.

    ``failed`` has id and reason of missing images and of empty sentences.
    """

    kind: RecordKind
    records: list[Candidate] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)

    def add_image(self, item: str, path: Path, written: str = "") -> None:
        """Add an image, or the reason why it cannot be used. Messages show its path as ``written``."""
        try:
            status = path.stat()
        except OSError as error:
            self.failed.append((item, f"{escaped(written or path)}: {error.strerror or 'it cannot be read'}"))
        else:
            kind = "clip" if is_video_name(path.name) else "image"
            about = Item(item, status.st_mtime_ns, status.st_size)
            self.records.append(Candidate(about, path.absolute(), 0, kind, changed_ns=status.st_ctime_ns))

    def add_sentence(self, item: str, text: str, file: Path) -> None:
        """Add a sentence of a file. The index recognises a changed sentence by its hash, in place of a time."""
        content = text.encode()
        about = Item(item, int.from_bytes(sha256(content).digest()[:7]), len(content))
        self.records.append(Candidate(about, file, 0, "sentence", text=text))


def list_records(
    data: str | Path, *, kind: RecordKind | None = None, videos: bool = False, allow_outside: bool = False
) -> RecordList:
    """List the records of an encoding.

    Args:
        data: a folder of images, at any depth, or a file that lists images or sentences: ``.txt`` with one a line, or a
            table as ``openvse data table`` describes, perhaps with a column ``id``. ``FILE#image=COLUMN``,
            ``FILE#caption=COLUMN`` and ``id=COLUMN`` name the columns. Paths are relative to the folder of the file.
            Without ids, the path or the number of the line is the id. Several sentences of a line are 3.1, 3.2, ...
        kind: images or texts. None recognises the kind by the names of the columns, or by the first line of a ``.txt``.
        videos: whether clips are read, too.
        allow_outside: whether images of a table may be outside its folder. See ``refuse_outside``. Images of a ``.txt``
            may, because you wrote it yourself.

    Raises:
        DataError: there is nothing to encode, the file cannot be understood, two records have one id, or an image is
            outside the folder of its table.
    """
    path, columns = columns_of(Path(data))
    if columns.named and path.suffix.lower() not in TABLE_SUFFIXES:
        raise DataError(f"{escaped(data)}: only a table ({' '.join(TABLE_SUFFIXES)}) has columns to name")
    if path.is_dir():
        if kind == "texts":
            lists = " ".join((".txt", *TABLE_SUFFIXES))
            raise DataError(f"{escaped(path)} is a folder: sentences come from a file ({lists})")
        listing = _of_folder(path, videos)
    elif path.is_file():
        listing = _of_file(path, columns, kind, videos)
        if listing.kind == "images" and path.suffix.lower() != ".txt" and not allow_outside:
            refuse_outside(path, ((each.item.id, each.path) for each in listing.records))
    else:
        raise DataError(f"{escaped(path)}: there is no such file or folder: give a folder of images or a list")
    if not listing.records:
        what = "image" if listing.kind == "images" else "sentence"
        more = f" ({listing.left_out.describe()})" if listing.left_out else ""
        if listing.failed:
            more += f" (the first of {len(listing.failed)} failures: {listing.failed[0][1]})"
        raise DataError(f"there is no {what} to encode in {escaped(path)}{more}")
    _check_unique(path, listing.records)
    return listing


def _of_folder(folder: Path, videos: bool) -> RecordList:
    (media,) = each_once([list_media(folder, videos=videos)])
    listing = RecordList("images", left_out=media.left_out)
    listing.failed.extend((str(path), "the folder cannot be listed") for path in media.unreadable)
    for path in media.paths:
        listing.add_image(path.relative_to(folder).as_posix(), path)
    listing.records.sort(key=lambda record: os.fsencode(record.item.id))
    return listing


def _of_file(file: Path, columns: Columns, kind: RecordKind | None, videos: bool) -> RecordList:
    kind, fields, entries = _lines(file, kind) if file.suffix.lower() == ".txt" else _table(file, columns, kind)
    name = columns.id or "id"
    rows = [row for number, entry in entries for row in _cells(file, kind, fields, number, entry, name)]
    listing = RecordList(kind)
    if kind == "texts":
        for number, item, value in rows:
            if sentence := whole_characters(" ".join(value.split())):
                listing.add_sentence(item or str(number), sentence, file)
            else:
                listing.failed.append((item or str(number), f"line {number} has no sentence"))
        return listing
    files = find_files(file.parent / name for _, _, name in rows if name.strip())
    for number, item, value in rows:
        path = file.parent / value
        if not value.strip():
            listing.failed.append((item or str(number), f"line {number} names no image"))
        elif left := kind_left_out(value, videos=videos):
            listing.left_out.files.setdefault(left, []).append(Path(value))
        else:
            listing.add_image(item or value, files.files.get(path, path), files.without_file(path))
    return listing


_Rows = list[tuple[int, str, str]]  # the number of the line, the id or "", and the path or sentence
_Entries = Iterable[tuple[int, Mapping[str, Any]]]


def _lines(file: Path, kind: RecordKind | None) -> tuple[RecordKind, Sequence[str], _Entries]:
    """Return the kind of a text file, which its first line shows, and its non-empty lines as entries of one field."""
    try:
        lines = read_lines(file)
    except (OSError, TextError) as error:
        raise DataError(f"{escaped(file)} cannot be read ({error})") from error
    rows = [(number, {"line": line}) for number, line in enumerate(lines, start=1) if line]
    first = Path(rows[0][1]["line"].strip()).name if rows else ""
    kind = kind or ("images" if is_image(first) or is_video_name(first) else "texts")
    return kind, ["line"], rows


def _table(file: Path, columns: Columns, kind: RecordKind | None) -> tuple[RecordKind, Sequence[str], _Entries]:
    """Return the kind of a table, which the names of its columns show, its fields of this kind, and its rows."""
    names = names_in(file)
    if not names:
        next(read_entries(file, ()), None)  # raises for a line that is no entry
    if columns.named and file.suffix.lower() in (".csv", ".tsv"):
        columns = columns.in_text()
    image = columns.image_in(names)
    texts = columns.captions_in(names) or [name for name in names if name == "sentence"]
    fields: dict[RecordKind, Sequence[str]] = {"images": [image] if image else [], "texts": texts}
    if kind is None and bool(columns.image) is not bool(columns.captions):
        kind = "images" if columns.image else "texts"
    if kind is None and image and texts:
        raise DataError(
            f"{escaped(file)} has columns of images and of sentences ({image}, {texts[0]}): choose one with "
            f"{escaped(file)}#image={image} or {escaped(file)}#{','.join(f'caption={each}' for each in texts)}"
        )
    chosen: RecordKind = kind or ("images" if image else "texts")
    lacking = [name for name in columns.named if name not in names]
    if lacking or not fields[chosen]:
        allowed = {"images": IMAGE_FIELDS, "texts": (*CAPTION_FIELDS, "sentence")}[chosen]
        has = ", ".join(map(escaped, names)) or "none"
        raise DataError(
            f"{escaped(file)} has no column of {chosen} (it has {has}): call it one of {', '.join(lacking or allowed)}"
        )
    id_column = columns.id or "id"
    return chosen, fields[chosen], read_entries(file, [*fields[chosen], *([id_column] if id_column in names else [])])


def _cells(
    file: Path, kind: RecordKind, fields: Sequence[str], number: int, entry: Mapping[str, Any], id_field: str
) -> _Rows:
    """Return the path or the sentences of a row. Several sentences have the id or number of the row and their own."""
    item, values = whole_characters(_cell(entry.get(id_field))), [_cell(entry.get(fields[0]))]
    if kind == "texts":
        try:
            values = captions_of(entry, fields)
        except DataError as error:
            raise DataError(f"{escaped(file)}, line {number}: {error}") from None
    if len(values) < 2:
        return [(number, item, "".join(values))]
    return [(number, f"{item or number}.{place}", value) for place, value in enumerate(values, start=1)]


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else ""


def _check_unique(data: Path, records: Iterable[Candidate]) -> None:
    seen: set[str] = set()
    for record in records:
        if record.item.id in seen:
            raise DataError(f"{escaped(data)} gives the id {escaped(record.item.id)} twice: give each its own id")
        seen.add(record.item.id)


def bank_sentences(name: str) -> list[str]:
    """Return the sentences of a file, or the training captions of a data set, for a query bank."""
    if Path(name).is_file():
        return [each.text for each in list_records(name, kind="texts").records]
    drawn = drawn_for_bank(open_corpus(name, require_images=False, questions=False).split("train"))
    return [" ".join(text.split()) for text in drawn.captions[:MOST_TEXTS]]


FORMAT = "openvse-encoding"
MANIFEST = "encoding.json"

EncodedBlock = tuple[Sequence[str], Float[np.ndarray, "B K D"], Sequence[str] | None]
"""The ids of some records, their embeddings, and the sentences if they are sentences."""


@dataclass(frozen=True)
class Target:
    """The place of an encoding."""

    out: Path
    single: bool

    @property
    def is_array(self) -> bool:
        """Whether the output is one array."""
        return self.single and self.out.suffix.lower() == ".npy"

    @property
    def work(self) -> Path:
        """The folder of the unfinished index, which is removed at the end."""
        return self.out.with_name(f".{self.out.name}.unfinished") if self.single else self.out / ".unfinished"

    @property
    def manifest(self) -> Path:
        """The file that describes the output. It is written last."""
        return self.out.with_name(f"{self.out.name}.json") if self.single else self.out / MANIFEST

    def files(self) -> list[Path]:
        """Return the present files of the output, or its future files if it is one file. The ids come last."""
        if not self.single:
            return sorted(self.out.glob("embeddings-*.parquet"))
        return [self.out, *([self.out.with_name(f"{self.out.stem}_ids.txt")] if self.is_array else [])]

    def read_manifest(self) -> dict[str, Any] | None:
        """Return the content of the manifest, or None if there is none."""
        settle(self.manifest.parent, self.manifest.name)
        with suppress(OSError, DataError, ValueError):
            manifest = parse_json(read_text(self.manifest))
            if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
                return manifest
        return None

    def holds(self, sizes: dict[str, int]) -> bool:
        """Return whether the files of the output are there, with so many bytes."""
        with suppress(OSError):
            return all((self.manifest.parent / name).stat().st_size == size for name, size in sizes.items())
        return False

    def taken(self) -> Path | None:
        """Return a file of somebody else that the output would replace."""
        if any(self.work.glob("*.json")):
            return None
        there = [self.manifest, *self.files()] if self.single else sorted(self.out.glob("[!.]*"))
        return next((path for path in there if path.exists()), None)

    def write(self, blocks: Iterable[EncodedBlock], count: int, about: dict[str, Any]) -> None:
        """Write an output, which takes the place of an earlier one as a whole."""
        before = [path.name for path in self.files()]
        with replacing_files(self.manifest.parent, self.manifest.name, before) as made:
            if self.is_array:
                vectors, ids = (made / path.name for path in self.files())
                _write_array(vectors, ids, blocks, count)
            elif self.single:
                _write_parquet(made / self.out.name, blocks)
            else:
                for number, block in enumerate(blocks):
                    _write_parquet(made / f"embeddings-{number:05d}.parquet", [block])
            names = before if self.single else sorted(path.name for path in made.glob("*.parquet"))
            sizes = {name: (made / name).stat().st_size for name in names}
            content = {"format": FORMAT, "version": 1, **about, "files": sizes}
            (made / self.manifest.name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def target_of(out: Path) -> Target:
    """Return the place of an encoding by the name of its output."""
    target = Target(out, single=out.suffix.lower() in (".npy", ".parquet") and not out.is_dir())
    if not target.single and out.is_file():
        raise DataError(f"{out} is a file: give a folder, or a file name that ends with .npy or .parquet")
    if not target.is_array:
        _import_parquet()
    return target


def _write_array(vectors: Path, ids: Path, blocks: Iterable[EncodedBlock], count: int) -> None:
    """Write embeddings as an array, ``[count, D]`` where K is 1, and their ids as lines.

    ``np.save`` would not notice a full disk. Names of files that are not UTF-8 keep their bytes.
    """
    with vectors.open("wb") as opened, ids.open("wb") as names:
        file: BinaryIO = opened
        for number, (some, block, _) in enumerate(blocks):
            if not number:
                shape = (count, *(block.shape[2:] if block.shape[1] == 1 else block.shape[1:]))
                header = {"descr": np.lib.format.dtype_to_descr(block.dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(block).data)
            names.write(b"".join(os.fsencode(item) + b"\n" for item in some))


def _write_parquet(target: Path, blocks: Iterable[EncodedBlock]) -> None:
    """Write ids, embeddings and perhaps sentences as Parquet, a row group for each block.

    A row is an embedding: ``id``, ``part`` (0 to K - 1, only for models of K > 1 embeddings), ``text`` (of sentences)
    and ``vector``, a list of D numbers. Bytes of a file's name that are not UTF-8 are written as escapes.
    """
    pa, parquet = _import_parquet()
    writer: Any = None
    with ExitStack() as opened:
        for block in blocks:
            table = _arrow(pa, *block)
            writer = writer or opened.enter_context(parquet.ParquetWriter(target, table.schema, compression="zstd"))
            writer.write_table(table, row_group_size=len(table))


def _arrow(pa: ModuleType, ids: Sequence[str], vectors: Float[np.ndarray, "B K D"], texts: Sequence[str] | None) -> Any:
    count, num_embeddings, dim = vectors.shape
    columns: dict[str, Any] = {"id": pa.array(_repeated(ids, num_embeddings), pa.string())}
    if num_embeddings > 1:
        columns["part"] = pa.array(np.tile(np.arange(num_embeddings, dtype=np.int16), count))
    if texts is not None:
        columns["text"] = pa.array(_repeated(texts, num_embeddings), pa.string())
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(vectors).reshape(-1)), dim)
    return pa.table(columns)


def _repeated(texts: Sequence[str], times: int) -> list[str]:
    clean = (text.encode("utf-8", "backslashreplace").decode() for text in texts)
    return [text for text in clean for _ in range(times)]


def _import_parquet() -> tuple[ModuleType, ModuleType]:
    """Return pyarrow and its Parquet module. Raise OpenVSEError if pyarrow is not installed."""
    with importing("Parquet needs pyarrow", "parquet"):
        import pyarrow
        from pyarrow import parquet
    return pyarrow, parquet


_SHAPE = ("count", "num_embeddings", "dim")


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
    kind: RecordKind
    count: int
    num_embeddings: int
    dim: int
    earlier: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)


def encode(
    model: TwoTower | str | Path,
    data: str | Path,
    out: str | Path,
    *,
    dtype: VectorDtype = "float32",
    batch_size: int = 64,
    shard_size: int = 1024,
    workers: Workers | None = None,
    device: str = "cpu",
    overwrite: bool = False,
    allow_outside: bool = False,
    progress: Callable[[WorkProgress], None] | None = None,
) -> EncodingReport:
    """Write the embeddings of images or sentences, with their ids, to files for any other program.

    For the same model, records, batches, number of threads and kind of processor, the files have the same bytes,
    regardless of interruptions and the number of workers.

    Args:
        model: the model, or its folder or name. Workers need a folder or name.
        data: a folder of images, or a file that lists images or sentences. See ``list_records``.
        out: a file ``NAME.npy`` (its ids go to ``NAME_ids.txt``) or ``NAME.parquet``, or a folder, which gets Parquet
            files. ``NAME.npy.json``, or ``encoding.json`` in the folder, records the settings and the records left out.
        dtype: the type of a stored number.
        batch_size: the number of records that are embedded at once.
        shard_size: the number of records in a file of a folder, or in a row group of one Parquet file.
        workers: processes that embed. None embeds in this one.
        device: the device of a model that is loaded here.
        overwrite: replace an output of other records or of another model.
        allow_outside: whether images of a table may be outside its folder.
        progress: called after each batch.

    Raises:
        OpenVSEError: there is nothing to encode, the output belongs to other data, the disk refuses, an embedding holds
            NaN, the records have different numbers of embeddings, or Ray or pyarrow is needed and not installed.
    """
    if min(batch_size, shard_size) < 1:
        raise DataError("batch_size and shard_size must be 1 or more")
    target = target_of(Path(out))
    loaded = model if isinstance(model, TwoTower) else load_as(TwoTower, model, device=device)
    sharing = None
    if workers is not None:
        sharing = Sharing(workers, partial(load_same, _source(model), loaded.fingerprint, workers.device))
    records = list_records(data, videos=loaded.reads_videos, allow_outside=allow_outside)
    threads = torch.get_num_threads() if workers is None else workers.threads
    numbers = dtype, batch_size, threads, loaded.device.type
    settings = json.dumps([loaded.fingerprint, records.kind, *numbers])
    run = _Run(target, records, loaded, settings, dtype, batch_size, shard_size, sharing, progress)
    if (report := run.finished(overwrite)) is not None and not target.work.exists():
        return report
    with IndexFolder(target.work) as index:
        report = report or run(index)
        shutil.rmtree(target.work, ignore_errors=True)
    return report


def _source(model: TwoTower | str | Path) -> str:
    """Return the name under which workers find a model."""
    if isinstance(model, TwoTower):
        raise ModelError("workers load the model themselves: give its folder or name instead of the model")
    return str(Path(model).absolute()) if Path(model).exists() else str(model)


@dataclass
class _Run:
    """One run of an encoding. ``settings`` holds everything that the numbers depend on besides the records."""

    target: Target
    records: RecordList
    model: TwoTower
    settings: str
    dtype: VectorDtype
    batch_size: int
    shard_size: int
    sharing: Sharing | None
    progress: Callable[[WorkProgress], None] | None
    reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        digest = sha256(f"{self.settings} {self.shard_size}".encode())
        for record in self.records.records:
            digest.update(f"{record.item}\n".encode(errors="surrogateescape"))
        self._digest = digest.hexdigest()[:32]

    def finished(self, overwrite: bool) -> EncodingReport | None:
        """Return the report of an existing output, or None. Raise DataError if an output of other data is there."""
        target, manifest = self.target, self.target.read_manifest()
        if manifest is not None and manifest.get("digest") == self._digest:
            if not target.holds(manifest["files"]):
                return None
            self.reasons = {each["id"]: each["reason"] for each in manifest["left_out"]}
            count, num_embeddings, dim = (manifest[each] for each in _SHAPE)
            return self._report(count, num_embeddings, dim, len(self.records.records))
        if overwrite:
            return None
        if manifest is not None:
            raise DataError(
                f"{escaped(target.out)} holds embeddings of other records, of another model or of other settings: "
                f"choose another --out, or replace them with --overwrite"
            )
        if taken := target.taken():
            raise DataError(f"{escaped(taken)} is no output of openvse: choose another --out, or add --overwrite")
        return None

    def __call__(self, folder: IndexFolder) -> EncodingReport:
        """Embed the records that an earlier run has not, and write the output."""
        try:
            return self._write(self._embed(folder))
        except IndexDamagedError:  # embed everything again
            return self._write(self._embed(folder, anew=True))

    def _embed(self, folder: IndexFolder, *, anew: bool = False) -> int:
        """Complete the unfinished index, and return the number of records that an earlier run had embedded."""
        records, root, key = self.records.records, Root(0, "", ""), sha256(self.settings.encode()).hexdigest()
        with IndexWriter(folder, model=key, roots=[root], dtype=self.dtype, anew=anew) as writer:
            walked = () if writer.written is None else writer.written.database.walk(0)
            held = {item: Item(item, modified_ns, size) for item, modified_ns, size, *_ in walked}
            new = remaining(records, lambda record: held.get(record.item.id) == record.item, self.batch_size)
            embedder, before = Embedder(self.model, self.batch_size), len(records) - len(new)
            pace = Pace(len(records), self.progress, before=before, unit="items")
            pace.tell()
            for batch in keep_batches(embedder.embed(new, self.sharing), writer, pace):
                self.reasons |= {record.item.id: reason for record, reason in batch.failed}
        ids = (record.item.id for record in records)
        self.reasons = {item: self.reasons[item] for item in ids if item in self.reasons}
        return before

    def _write(self, earlier: int) -> EncodingReport:
        """Write the embeddings of the complete index, in the order of the list."""
        records, target = self.records, self.target
        good = [record for record in records.records if record.item.id not in self.reasons]
        if not good:
            item, reason = next(iter(self.reasons.items()))
            raise DataError(f"none of the {len(records.records)} {records.kind} can be used (first {item}: {reason})")
        index = Index.open(target.work)
        shape = len(good), index.manifest.num_embeddings, index.manifest.dim
        report = self._report(*shape, earlier)
        left_out = [{"id": item, "reason": reason} for item, reason in report.failed]
        about = {"digest": self._digest, "model": self.model.fingerprint, "kind": report.kind}
        more = {**dict(zip(_SHAPE, shape, strict=True)), "dtype": self.dtype, "left_out": left_out}
        target.write(self._blocks(index, good), len(good), {**about, **more})
        return report

    def _blocks(self, index: Index, good: list[Candidate]) -> Iterator[EncodedBlock]:
        """Yield ids, embeddings and sentences, a shard at a time."""
        places = {item: place for place, item in enumerate(index.table.ids)}
        for some in in_batches(good, self.shard_size):
            ids = [record.item.id for record in some]
            vectors = index.gather(np.array([places[item] for item in ids]))
            yield ids, vectors, [record.text for record in some] if self.records.kind == "texts" else None

    def _report(self, count: int, num_embeddings: int, dim: int, earlier: int) -> EncodingReport:
        failed = dict([*self.records.failed, *self.reasons.items()])
        about = self.target.out, self.records.kind, count, num_embeddings, dim, earlier
        return EncodingReport(*about, [*failed.items()], self.records.left_out)
