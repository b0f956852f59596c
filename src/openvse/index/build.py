"""Folders of images, or a file of sentences -> an index; a later run costs what changed since."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from openvse.errors import DataError, IndexDamagedError, IndexFormatError, ModelError
from openvse.index import metadata
from openvse.index.clips import SECONDS, count_segments
from openvse.index.database import Database, Root
from openvse.index.embedding import Embedder, ImageEmbedder, KnownContent, StoredEmbedder
from openvse.index.maintenance import compact, damaged_items, unused_rows
from openvse.index.manifest import Held, Place, VectorDtype, read_manifest
from openvse.index.portions import Sharing, SharingEmbedder
from openvse.index.roots import Plan, plan
from openvse.index.scanning import Changes, RootListing, compare, list_root, list_sentences
from openvse.index.writer import IndexWriter
from openvse.media.listing import LeftOut
from openvse.media.names import escaped

KEEP_SECONDS = 5.0
"""A kill costs at most this much work."""

_NOT_INDEXABLE = (
    "this model cannot be indexed: an index needs a fixed number of embeddings for each image, whose inner products "
    "with those of a sentence are the scores; score images and sentences with model.score instead"
)
_IGNORE = "ignore"
_SHORTEST, _LONGEST = 0.1, 86_400.0  # seconds of a segment
_FEW_ROWS = 1024  # unused ones that are no reason to rewrite an index


@dataclass(frozen=True)
class IndexProgress:
    """How far indexing has come.

    Attributes:
        done: items dealt with: embedded, unchanged, or found to be bad.
        total: items in the folders.
        images_per_s: items dealt with in a second.
    """

    done: int
    total: int
    images_per_s: float


@dataclass(frozen=True)
class IndexReport:
    """What indexing did.

    Attributes:
        count: items in the index.
        reused: those of them that were there already and have not changed.
        failed: path and reason of each image that cannot be used.
        left_out: files that look like images or clips and were not tried, by kind.
        stored: images that were embedded by stored features.
        resumed: those that an interrupted indexing had embedded; they do not count as reused.
        recognised: images that were moved, copied or touched, and recognised by their content.
        removed: items that are no longer there, and were removed.
        kept: roots and folders that could not be looked at, with the reason; their items stay.
        compacted: rows that no item needed any more, and that were removed from the files.
        bad_metadata: lines of ``metadata.jsonl`` that could not be understood: the file, and their numbers.
        holds: what an item is.
        segments: how many of the items are segments of clips.
    """

    count: int
    reused: int
    failed: list[tuple[Path, str]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    stored: int = 0
    resumed: int = 0
    recognised: int = 0
    removed: int = 0
    kept: list[tuple[Path, str]] = field(default_factory=list)
    compacted: int = 0
    bad_metadata: list[tuple[Path, tuple[int, ...]]] = field(default_factory=list)
    holds: Held = "images"
    segments: int = 0


def build_index(
    model: ImageEmbedder,
    folder: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    batch_size: int = 64,
    dtype: VectorDtype | None = None,
    overwrite: bool = False,
    add: bool = False,
    ignore: Sequence[str] | None = None,
    segment_seconds: float | None = None,
    check: bool = False,
    stored: StoredEmbedder | None = None,
    model_place: Place | None = None,
    sharing: Sharing | None = None,
    progress: Callable[[IndexProgress], None] | None = None,
) -> IndexReport:
    """Embed every image below some folders, and every video if the model reads clips; or the sentences of a file.

    Into an index that this model made before, only what is new or has changed is embedded: files with the same path,
    time and size stay as they are, and those that were moved are recognised by their content. What is no longer there
    is removed, but a folder that is not there keeps its items. Memory is bounded by the batch. What was embedded is
    part of the index after a few seconds: a search finds it, and indexing that was stopped goes on when it is repeated.

    Args:
        model: the model that embeds the images.
        folder: a folder of images, at any depth, or several; or a text file with a sentence a line.
        out: folder of the index, created where it is missing.
        batch_size: images embedded at once.
        dtype: how a number is stored; None is that of the index, float32 for a new one.
        overwrite: replace an index that another model made, or that holds other folders.
        add: add the folders to those that the index holds.
        ignore: patterns to skip beside ``.openvseignore`` (see ``IgnoreRules``); None takes those it was last given.
        segment_seconds: length of the items into which clips are cut; 0: whole clips; None: as was last given.
        check: first compare even a large index with its checksums, and embed anew what is damaged.
        stored: features that may stand for images which have not changed since they were extracted.
        model_place: where the model is, for searches (``place_of``); None keeps what the index says of the same model.
        sharing: processes that embed what is new (``openvse.tasks.shared_indexing``); None embeds in this one.
        progress: called after every batch.

    Raises:
        DataError: there is no image that can be used, or an ignore rule or ``segment_seconds`` is not allowed.
        ModelError: no index can serve the model.
        IndexFormatError: the index cannot be written, or is of another model or of other folders.
    """
    if not model.indexable:
        raise ModelError(_NOT_INDEXABLE)
    given = [folder] if isinstance(folder, str | Path) else list(folder)
    folders = [Path(each).resolve() for each in given]
    holds: Held = "sentences" if folders and all(each.is_file() for each in folders) else "images"
    planned = plan(
        Path(out), folders, model=model.fingerprint, dtype=dtype, holds=holds, overwrite=overwrite, add=add
    )
    run = _Run(model, Path(out), planned, holds, dtype, batch_size, stored, model_place, check, sharing)
    run.seconds = _checked(segment_seconds)
    try:
        return run(folders, given, ignore, progress)
    except IndexDamagedError:  # of a database that SQLite cannot read: everything is embedded anew
        run.anew = True
        return run(folders, given, ignore, progress)


def _checked(seconds: float | None) -> float | None:
    if seconds and not _SHORTEST <= seconds <= _LONGEST:
        raise DataError(
            f"segment_seconds is {seconds:g}: allowed are {_SHORTEST:g} to {_LONGEST:g}, and 0 for whole clips"
        )
    return seconds


class _Run:
    """One run of indexing."""

    def __init__(
        self,
        model: ImageEmbedder,
        out: Path,
        planned: Plan,
        holds: Held,
        dtype: VectorDtype | None,
        batch_size: int,
        stored: StoredEmbedder | None,
        model_place: Place | None,
        check: bool,
        sharing: Sharing | None,
    ) -> None:
        self._model, self._out, self._plan, self._holds = model, out, planned, holds
        self._dtype, self._batch_size, self._stored = dtype, batch_size, stored
        self._place, self._check, self._sharing = model_place, check, sharing
        self.anew = False
        self.seconds: float | None = None
        self._length = 0.0

    def __call__(
        self,
        folders: Sequence[Path],
        given: Sequence[str | Path],
        ignore: Sequence[str] | None,
        progress: Callable[[IndexProgress], None] | None,
    ) -> IndexReport:
        named = set(map(str, folders))
        roots = [root for root in self._plan.roots if root.path in named]
        rules = _remembered(self._out, _IGNORE).splitlines() if ignore is None else list(ignore)
        if self._holds == "images":
            self._length = self.seconds or 0.0
            if self.seconds is None:
                self._length = float(_remembered(self._out, SECONDS) or 0)
        listings = [self._list(root, rules) for root in roots]
        _check_present(listings, given, self._out)
        with self._writer() as writer:
            changes, damaged = self._changes(writer, listings)
            embedder = self._embedder(writer, damaged)
            self._write(writer, embedder, changes, progress)
            _check_still_there(listings)
            bad_lines = self._tidy(writer, embedder, changes, listings, ignore, given)
            writer.finish()
            database = writer.database
            compacted = 0
            if database is not None and _is_wasteful(database):
                compacted = compact(self._out, writer.manifest, database)
            count = 0 if database is None else database.count()
            return IndexReport(
                count=count,
                reused=changes.unchanged - changes.resumed,
                failed=[*changes.failed, *embedder.failed],
                left_out=changes.left_out,
                stored=embedder.from_store,
                resumed=changes.resumed,
                recognised=embedder.recognised,
                removed=len(changes.gone),
                kept=changes.kept,
                compacted=compacted,
                bad_metadata=bad_lines,
                holds=self._holds,
                segments=0 if database is None else count_segments(database),
            )

    def _list(self, root: Root, rules: Sequence[str]) -> RootListing:
        if self._holds == "sentences":
            return list_sentences(root)
        videos = self._model.reads_videos or bool(self._length)
        return list_root(root, videos=videos, ignore=rules)

    def _writer(self) -> IndexWriter:
        return IndexWriter(
            self._out,
            model=self._model.fingerprint,
            roots=self._plan.roots,
            dtype=self._dtype,
            model_place=self._place,
            holds=self._holds,
            replace=self._plan.replace,
            anew=self.anew,
        )

    def _changes(self, writer: IndexWriter, listings: Sequence[RootListing]) -> tuple[Changes, set[str]]:
        database, changes, damaged = writer.database, Changes(), set[str]()
        if database is not None:
            damaged = damaged_items(self._out, writer.manifest, database, check=self._check)
        for listing in listings:
            compare(listing, database, damaged, changes, writer.first_unfinished, self._length)
        return changes, damaged

    def _embedder(self, writer: IndexWriter, damaged: set[str]) -> Embedder:
        known = None
        if writer.database is not None:
            known = KnownContent(self._out, writer.manifest, writer.database, damaged)
        given = self._model, self._batch_size, self._stored, known
        return Embedder(*given) if self._sharing is None else SharingEmbedder(self._sharing, *given)

    def _write(
        self,
        writer: IndexWriter,
        embedder: Embedder,
        changes: Changes,
        progress: Callable[[IndexProgress], None] | None,
    ) -> None:
        """Embed and write what is new or has changed, and commit from time to time."""
        started = kept_at = time.perf_counter()
        before = changes.unchanged + len(changes.failed)
        done, total = before, before + len(changes.candidates)
        noted = "" if writer.database is None else writer.database.setting(SECONDS)
        if self._length != float(
            noted or 0
        ):  # with the first segment, as whoever comes after a kill must know
            writer.note(SECONDS, f"{self._length:g}")
        for entries, vectors in embedder.batches(changes.candidates):
            if entries:
                writer.append(entries, vectors)
            writer.drop(embedder.replaced())
            done = before + embedder.dealt
            if time.perf_counter() - kept_at > KEEP_SECONDS:
                writer.commit()
                kept_at = time.perf_counter()
            if progress is not None:
                progress(IndexProgress(done, total, done / (time.perf_counter() - started)))
        if progress is not None and not changes.candidates:
            progress(IndexProgress(done, total, done / max(1e-9, time.perf_counter() - started)))

    def _tidy(
        self,
        writer: IndexWriter,
        embedder: Embedder,
        changes: Changes,
        listings: Sequence[RootListing],
        ignore: Sequence[str] | None,
        given: Sequence[str | Path],
    ) -> list[tuple[Path, tuple[int, ...]]]:
        """Prepare what the last transaction does: remove what is gone, note what the user says of the rest."""
        failed = set(embedder.failed_ids)
        broken = [item for each in changes.candidates if each.item.id in failed for item in each.before]
        gone = [*changes.gone, *broken]
        if len(writer) - len(gone) <= 0:
            path, reason = [*changes.failed, *embedder.failed][0]
            raise DataError(
                f"none of the {changes.present} images in {', '.join(map(str, given))} can be used; the first is "
                f"{path}: {reason}"
            )
        if gone:
            writer.drop(gone)
        if ignore is not None:
            rules = "\n".join(ignore)
            writer.at_the_end(lambda database: database.set(_IGNORE, rules))
        bad = []
        for listing in listings if self._holds == "images" else ():
            folder = Path(listing.root.path)
            has_new = any(each.root == listing.root.number for each in changes.candidates)
            if listing.missing or not _says_something_new(writer, listing, folder, has_new):
                continue
            said = metadata.read_metadata(folder)
            if said.bad_lines:
                bad.append((folder / metadata.FILE, said.bad_lines))
            writer.at_the_end(partial(metadata.describe, root=listing.root, said=said))
        return bad


def _remembered(out: Path, name: str) -> str:
    """Return what an index was last given: ignore rules, or the length of segments."""
    with _opened(out) as database:
        return "" if database is None else database.setting(name)


@contextmanager
def _opened(out: Path) -> Iterator[Database | None]:
    """Open the database of an index for reading; None where there is none, or a damaged one."""
    try:
        manifest = read_manifest(out)
        database = Database(out / manifest.items)
    except IndexFormatError:
        database = None
    try:
        yield database
    finally:
        if database is not None:
            database.close()


def _check_present(listings: Sequence[RootListing], given: Sequence[str | Path], out: Path) -> None:
    """Raise DataError for a root in which there is nothing, unless the index holds items of it, which are kept."""
    with _opened(out) as database:
        held = {
            listing.root.number
            for listing in listings
            if listing.missing and database is not None and any(database.walk(listing.root.number))
        }
    for listing in listings:
        if not listing.missing or listing.root.number in held:
            continue
        folder = next((each for each in given if str(Path(each).resolve()) == listing.root.path), "")
        if listing.holds == "sentences":
            raise DataError(f"there is no sentence in {folder}: give a text file with a sentence a line")
        if not Path(listing.root.path).is_dir():
            what = "file; give a text file with a sentence a line"
            if Path(folder).suffix.lower() != ".txt":
                what = "folder; give a folder of images"
            raise DataError(f"{escaped(folder)}: there is no such {what}")
        what = f"; {listing.left_out.describe()}" if listing.left_out else ""
        raise DataError(
            f"there is no image in {folder}: give a folder with images, in it or in its subfolders{what}"
        )


def _check_still_there(listings: Sequence[RootListing]) -> None:
    """Raise DataError where a root vanished after it was listed: its images are not gone."""
    for listing in listings:
        if not listing.missing and not Path(listing.root.path).exists():
            raise DataError(
                f"{escaped(listing.root.path)} is no longer there: what was embedded is kept; connect it, and run the "
                f"same command again"
            )


def _is_wasteful(database: Database) -> bool:
    """Return whether most rows are of no use: rewriting them costs no more than what made them so."""
    unused, count = unused_rows(database)
    return unused > max(count, _FEW_ROWS)


def _says_something_new(writer: IndexWriter, listing: RootListing, folder: Path, has_new: bool) -> bool:
    """Return whether the metadata of a root must be read: the file has changed, or there are new items."""
    state = metadata.state_of(folder)
    before = ""
    if writer.database is not None:
        before = writer.database.setting(metadata.setting_of(listing.root.number))
    return state != before or bool(state and has_new)
