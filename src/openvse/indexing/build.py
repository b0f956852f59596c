"""Folders of images, or a file of sentences -> an index. A later run costs only the changes since."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path

from openvse.errors import DataError, IndexDamagedError, IndexFormatError, IndexVersionError, ModelError, check_number
from openvse.files import given_path, several
from openvse.indexing.database import FOLLOW_LINKS, READER, Database, Root
from openvse.indexing.embedding import (
    EmbeddedBatch,
    Embedder,
    ImageEmbedder,
    KnownContent,
    Sharing,
    StoredImages,
    keep_batches,
    rewritten_items,
)
from openvse.indexing.manifest import MANIFEST, UNFINISHED, Held, IndexManifest, IndexSettings, Place
from openvse.indexing.scanning import (
    SECONDS,
    Changes,
    RootListing,
    compare,
    list_roots,
    list_sentences,
    new_metadata,
    note_metadata,
)
from openvse.indexing.writer import FoundIndex, IndexFolder, IndexWriter, damaged_items, rewrite, unused_rows
from openvse.media.containers import unread_facts
from openvse.media.listing import LeftOut
from openvse.media.names import escaped
from openvse.media.segments import file_of
from openvse.media.sidecars import sidecar_problems
from openvse.pipeline import Pace, WorkProgress
from openvse.runtime.arrays import embeds_gaussians

_NOT_INDEXABLE = (
    "this model cannot be indexed: an index needs a fixed number of embeddings for each image, whose inner products "
    "with those of a sentence are the scores; it can order the hits of another one: openvse search INDEX --rerank MODEL"
)
_FOLDER_IS_AWAY = "it is gone, or holds no file, as the empty place of a drive that is not connected"
_IGNORE = "ignore"
_FEW_ROWS = 1024  # unused ones that are no reason to rewrite an index
_LOOKED_AT = 1000  # items of a folder that is gone, which are looked for in another one


@dataclass(frozen=True)
class IndexReport:
    """The result of indexing.

    Attributes:
        reused: the number of unchanged items from an earlier run.
        failed: path and reason of each image that cannot be used.
        left_out: files that look like images or clips and were not tried, by kind.
        stored: the number of images embedded by stored features.
        resumed: the number of items that an interrupted indexing had embedded. They do not count as reused.
        recognised: the number of images that were moved, copied or touched, or whose sidecars changed, and that were
            recognised by their content.
        described: the number of items from earlier runs whose metadata changed, such as captions.
        removed: the number of items that were removed because their files are gone.
        unreached: roots and folders that could not be read, with the reason. Their items stay.
        compacted: the number of rows without an item that were removed from the files.
        metadata_problems: a line for each fault in the ``metadata.jsonl`` of a folder, and in sidecars.
    """

    count: int
    reused: int
    failed: list[tuple[Path, str]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    stored: int = 0
    resumed: int = 0
    recognised: int = 0
    described: int = 0
    removed: int = 0
    unreached: list[tuple[Path, str]] = field(default_factory=list)
    compacted: int = 0
    metadata_problems: list[str] = field(default_factory=list)
    holds: Held = "images"
    segments: int = 0

    @property
    def is_unchanged(self) -> bool:
        """Whether the index was up to date before, and no problem is to be told."""
        return self.reused == self.count and not (self.removed or self.metadata_problems)

    def __str__(self) -> str:
        """Return ``305 images (5 new, 300 unchanged, 0 unreadable)``."""
        more = {
            "new": max(0, self.count - self.reused - self.resumed - self.recognised),
            "unchanged": self.reused,
            "segments of clips": self.segments,
            "kept by the stopped run": self.resumed,
            "from stored features": self.stored,
            "recognised by their content": self.recognised,
            "with changed metadata": self.described,
            "removed": self.removed,
        }
        parts = [f"{count} {what}" for what, count in more.items() if count] or ["0 new"]
        return f"{self.count} {self.holds} ({', '.join(parts)}, {len(self.failed)} unreadable)"


def build_index(
    model: ImageEmbedder,
    folder: str | Path | Sequence[str | Path],
    out: str | Path | IndexFolder,
    *,
    batch_size: int = 64,
    settings: IndexSettings | None = None,
    overwrite: bool = False,
    add: bool = False,
    check: bool = False,
    stored: StoredImages | None = None,
    model_place: Place | None = None,
    sharing: Sharing | None = None,
    progress: Callable[[WorkProgress], None] | None = None,
) -> IndexReport:
    """Embed every image below some folders, and every video if the model reads clips, or the sentences of a file.

    Into an index that this model made before, only new or changed files are embedded. Files with the same path, time
    and size stay unchanged, and moved files are recognised by their content. Missing files are removed, but a missing
    or emptied folder keeps its items. Memory is bounded by the batch. Embeddings are part of the index after a few
    seconds: a search finds them, and a stopped indexing continues when it is repeated.

    Args:
        model: the model that embeds the images.
        folder: a folder of images, at any depth, or several, or a text file with a sentence a line.
        out: the folder of the index, created if it is missing, or the folder that the caller has locked.
        batch_size: the number of images to embed at once.
        settings: what is indexed and how. Links lead to everything once. ``openvse.index`` has the other settings.
        overwrite: replace an index that another model made, or that holds other folders.
        add: add the folders to those that the index holds.
        check: first compare a large index with its checksums, and files with their hashes, and embed differing ones
            anew. Then rewrite the files without the rows that no item needs, even if these are few.
        stored: ``StoredFeatures`` that may replace images which have not changed since.
        model_place: the place of the model, for searches (``place_of``). None keeps the place in the index.
        sharing: processes that embed new items. None embeds in this one.
        progress: called after every batch.

    Raises:
        DataError: there is no usable image, or an ignore rule is not allowed.
        ModelError: no index can serve the model.
        IndexFormatError: the index cannot be written, or belongs to another model or other folders.
    """
    given = [given_path(each, "folder") for each in several(folder, "folder", (str, Path))]
    if not given:
        raise DataError("folder is empty: give at least one folder of images")
    if not model.indexable:
        raise ModelError(_NOT_INDEXABLE)
    check_number("batch_size", batch_size, 1, whole=True)
    embedder = partial(Embedder, model, batch_size, stored)
    run_of = partial(_Run, model, given, embedder=embedder, settings=settings or IndexSettings(), add=add)
    run_of = partial(run_of, overwrite=overwrite, check=check, place=model_place)
    with nullcontext(out) if isinstance(out, IndexFolder) else IndexFolder(given_path(out, "out")) as index:
        run = run_of(index, sharing=sharing, progress=progress)
        try:
            return run(index.find())
        except IndexDamagedError:  # of a database that SQLite cannot read: everything is embedded anew
            return run(None, anew=True)


def _plan(asked: _Run, folders: Sequence[Path], holds: Held) -> tuple[tuple[Root, ...], bool]:
    """Decide which roots the index will have, and whether the existing one must be replaced.

    A damaged index may be replaced, and so may a folder that has moved: the old one is gone, and an image that the
    index holds is in the new one, unchanged.
    """
    _check_apart(folders)
    index = asked.index
    problems = [index.problem(name) for name in (MANIFEST, UNFINISHED)]
    if not asked.overwrite and (
        later := next((each for each in problems if isinstance(each, IndexVersionError)), None)
    ):
        raise later
    current, unfinished = index.find(), index.find(UNFINISHED)
    fresh, is_there = _numbered((), folders), (index.path / MANIFEST).is_file()
    for each in (current, unfinished):
        if each is None or (each is unfinished and asked.overwrite):
            continue
        what = _difference(each.manifest, asked.model.fingerprint, holds)
        merged = None if what else _merged(each, folders, asked.add)
        if merged is None and not asked.overwrite:
            names = ", ".join(root.path for root in each.roots)
            reason = what or f"holds the images of {names}, not of {', '.join(map(str, folders))}"
            more = "" if what else "add the folder with --add, "
            raise IndexFormatError(f"index {index.path} {reason}: {more}choose another --out, or give --overwrite")
        if merged is None:
            return fresh, is_there
    if current is None:
        return fresh, isinstance(index.problem(), IndexVersionError)
    if asked.settings.dtype not in (None, current.manifest.dtype):
        return fresh, True
    return _merged(current, folders, asked.add) or fresh, False


def _difference(manifest: IndexManifest, model: str, holds: Held) -> str:
    if manifest.model != model:
        return f"was made by model {manifest.model}, not by {model}"
    return "" if manifest.holds == holds else f"holds {manifest.holds}, not {holds}"


def _merged(current: FoundIndex, folders: Sequence[Path], add: bool) -> tuple[Root, ...] | None:
    """Return the roots of an index once folders are indexed, or None if the roots differ."""
    known = {root.path: root for root in current.roots}
    strange = [folder for folder in folders if str(folder) not in known]
    if not strange:
        return current.roots
    if add:
        _check_apart([*map(Path, known), *strange])
        return _numbered(current.roots, strange, current.database)
    named = set(map(str, folders))
    gone = [root for root in current.roots if root.path not in named and not Path(root.path).exists()]
    if len(strange) == len(gone) == 1 and _holds_same(current.database, gone[0], strange[0]):
        moved = Root(gone[0].number, str(strange[0]), gone[0].label)
        return tuple(moved if root == gone[0] else root for root in current.roots)
    return None


def _numbered(known: Sequence[Root], folders: Sequence[Path], held: Database | None = None) -> tuple[Root, ...]:
    """Give new roots numbers, and labels that distinguish their items from each other and from held ones."""
    roots = list(known)
    for folder in folders:
        number = max((root.number for root in roots), default=-1) + 1
        if not number:
            roots.append(Root(0, str(folder), ""))
            continue
        taken, name = {root.label for root in roots}, folder.name or "root"
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        free = (each for each in names if each not in taken and not (held and held.begins(f"{each}:")))
        roots.append(Root(number, str(folder), next(free)))
    return tuple(roots)


def _check_apart(folders: Sequence[Path]) -> None:
    """Raise DataError if a folder is named twice or is inside another, because its images would be found twice."""
    for place, first in enumerate(folders):
        for second in folders[place + 1 :]:
            if first == second or first in second.parents or second in first.parents:
                raise DataError(f"{first} and {second} hold the same images: index the outer one, or folders apart")


def _holds_same(database: Database, gone: Root, folder: Path) -> bool:
    """Return whether a folder has an unchanged image of a root that is gone."""
    with suppress(IndexFormatError):
        for item_id, modified_ns, size, *_ in islice(database.walk(gone.number), _LOOKED_AT):
            with suppress(OSError, ValueError):  # an odd name is no reason to stop
                status = Path(folder, file_of(gone.name_of(item_id))).stat()
                if (status.st_mtime_ns, status.st_size) == (modified_ns, size):
                    return True
    return False


@dataclass
class _Run:
    """A run of indexing. ``embedder`` makes the embedder, for embeddings of content that the index holds.

    See ``build_index`` for the arguments of the caller.
    """

    model: ImageEmbedder
    given: Sequence[str | Path]
    index: IndexFolder
    embedder: Callable[[KnownContent | None], Embedder]
    settings: IndexSettings
    overwrite: bool
    add: bool
    check: bool
    place: Place | None
    sharing: Sharing | None
    progress: Callable[[WorkProgress], None] | None

    def __post_init__(self) -> None:
        folders = [Path(each).resolve() for each in self.given]
        are_files = bool(folders) and all(each.is_file() for each in folders)
        self._holds: Held = "sentences" if are_files else "images"
        self._all_roots, self._replace = _plan(self, folders, self._holds)
        named = set(map(str, folders))
        self._roots = [root for root in self._all_roots if root.path in named]

    def __call__(self, current: FoundIndex | None, *, anew: bool = False) -> IndexReport:
        """Index the roots. ``current`` is the existing index, which a new one may replace ``anew``."""
        settings = self._settings(current)
        seconds = float(settings[SECONDS] or 0)
        listings = self._listings(settings, seconds)
        _check_present(listings, self.given, current)
        with self._writer(anew=anew) as writer:
            changes, damaged = Changes(), set[str]()
            before = writer.written
            if before is not None:
                damaged = damaged_items(before, check=self.check)
                damaged |= rewritten_items(before, self._roots) if self.check else set()
            database = None if before is None else before.database
            for listing in listings:
                compare(listing, database, damaged, changes, writer.first_unfinished, seconds)
            for name, value in settings.items():
                if value != _remembered(before, name):
                    writer.note(name, value)  # with the first items, for the next run after a kill
            outcome = self._write(writer, changes, damaged)
            _check_still_there(listings)
            self._keep_away(writer, changes)
            self._drop_gone(writer, changes, outcome)
            problems, described = sidecar_problems(outcome.sidecars), set[int]()
            problems += unread_facts(each.path for each in changes.candidates)
            problems += self._note_what_is_said(writer, changes, listings, described)
            writer.finish()
            return replace(self._report(writer, changes, outcome, problems), described=len(described))

    def _settings(self, current: FoundIndex | None) -> dict[str, str]:
        """Return the settings for the index to remember, from the user now or before."""
        given = self.settings
        seconds, rules, follows = given.segment_seconds, given.ignore, given.follow_links
        if self._holds == "sentences":
            return {SECONDS: ""}
        before = {name: _remembered(current, name) for name in (SECONDS, _IGNORE, FOLLOW_LINKS, READER)}
        if seconds or (before[SECONDS] and seconds is not None):
            before[SECONDS] = f"{seconds:g}"
        if rules is not None:
            before[_IGNORE] = "\n".join(rules)
        if follows is not None:
            before[FOLLOW_LINKS] = "yes" if follows else ""
        return before

    def _listings(self, settings: Mapping[str, str], seconds: float) -> list[RootListing]:
        if self._holds == "sentences":
            return [list_sentences(root) for root in self._roots]
        rules, follows = settings[_IGNORE].split("\n"), bool(settings[FOLLOW_LINKS])
        videos = self.model.reads_videos or bool(seconds)
        roots = self._all_roots if follows else self._roots  # a link may lead into another root
        labels = [root.label for root in self._all_roots]
        listings = list_roots(roots, videos=videos, ignore=rules, follow_links=follows, labels=labels)
        return [listing for listing in listings if listing.root in self._roots]

    def _writer(self, *, anew: bool) -> IndexWriter:
        return IndexWriter(
            self.index,
            model=self.model.fingerprint,
            roots=self._all_roots,
            dtype=self.settings.dtype,
            model_place=self.place,
            holds=self._holds,
            gaussians=embeds_gaussians(self.model),
            replace=self._replace,
            anew=anew,
        )

    def _write(self, writer: IndexWriter, changes: Changes, damaged: set[str]) -> EmbeddedBatch:
        """Embed and write new and changed items, and commit from time to time."""
        known = None if writer.written is None else KnownContent(writer.written, damaged)
        batches = self.embedder(known).embed(changes.candidates, self.sharing)
        before, outcome = changes.unchanged + len(changes.failed), EmbeddedBatch()
        pace = Pace(before + len(changes.candidates), self.progress, before=before)
        for batch in keep_batches(batches, writer, pace):
            outcome.failed += batch.failed
            outcome.from_store += batch.from_store
            outcome.recognised += batch.recognised
            outcome.sidecars += batch.sidecars
        if not changes.candidates:
            pace.tell()
        return outcome

    def _keep_away(self, writer: IndexWriter, changes: Changes) -> None:
        """Keep the items of emptied folders, but not those whose files were moved, and came under other names."""
        if not changes.away:
            return
        writer.commit()  # of the files that came
        assert writer.written is not None, "the items were in it"
        lost = {*changes.gone, *chain.from_iterable(changes.away.values())}
        source, folders = getattr(self.model, "source", "") or "MODEL", map(str, self.given)
        command = shlex.join(["openvse", "index", str(source), *folders, "--out", str(self.index.path), "--forget"])
        for folder, items in changes.away.items():
            moved = [item for item in items if writer.written.database.later_copies(item) - lost]
            kept = sorted({*items}.difference(moved))
            changes.gone += moved
            changes.kept += kept
            if kept:
                reason = f"its {len(kept):,} item(s) are kept; connect it, or remove them with {command}"
                changes.unreached.append((folder, f"{_FOLDER_IS_AWAY}: {reason} {shlex.quote(str(folder))}"))

    def _drop_gone(self, writer: IndexWriter, changes: Changes, outcome: EmbeddedBatch) -> None:
        """Remove items whose files are gone or unusable now, with the last transaction."""
        broken = [item for candidate, _ in outcome.failed for item in candidate.before]
        gone = [*changes.gone, *broken]
        if len(writer) - len(gone) <= 0:
            failed = [*changes.failed, *((candidate.path, reason) for candidate, reason in outcome.failed)]
            (path, reason), *_ = failed
            given = ", ".join(map(str, self.given))
            raise DataError(f"none of the {changes.present} images in {given} can be used; first {path}: {reason}")
        if gone:
            writer.drop(gone)

    def _note_what_is_said(
        self, writer: IndexWriter, changes: Changes, listings: Sequence[RootListing], described: set[int]
    ) -> list[str]:
        """Note metadata with the last transaction, add the keys of changed items, and return the faults."""
        database = None if writer.written is None else writer.written.database
        problems: list[str] = []
        with_new = {candidate.root for candidate in changes.candidates}
        for listing in listings if self._holds == "images" else ():
            if listing.missing:
                continue
            has_new = listing.root.number in with_new or writer.first_unfinished > 0
            if has_new and (unused := listing.sidecars.unused()):
                first = escaped(Path(listing.root.path, unused[0]))
                problems.append(f"{len(unused):,} sidecar(s) are beside no image or video (first: {first})")
            metadata = new_metadata(database, listing, has_new=has_new, kept=changes.kept)
            if metadata is None:
                continue
            problems += metadata.problems
            note = partial(note_metadata, root=listing.root, stated=metadata, run=writer.run)
            writer.at_the_end(partial(note, altered=described))
        return problems

    def _report(
        self, writer: IndexWriter, changes: Changes, outcome: EmbeddedBatch, metadata_problems: list[str]
    ) -> IndexReport:
        """Compact the index if requested or worth it, and return the report."""
        index = writer.written
        assert index is not None, "an index without items was refused"
        count, unused = index.database.count(), unused_rows(index.database)
        # Where most rows are of no use, rewriting the files costs no more than what made them so.
        compacted = rewrite(index) if self.check or unused > max(count, _FEW_ROWS) else 0
        return IndexReport(
            count=count,
            reused=changes.unchanged + len(changes.kept) - changes.resumed,
            failed=[*changes.failed, *((candidate.path, reason) for candidate, reason in outcome.failed)],
            left_out=changes.left_out,
            stored=outcome.from_store,
            resumed=changes.resumed,
            recognised=outcome.recognised,
            removed=len(changes.gone),
            unreached=changes.unreached,
            compacted=compacted,
            metadata_problems=metadata_problems,
            holds=self._holds,
            segments=index.database.count(segments=True),
        )


def _remembered(current: FoundIndex | None, name: str) -> str:
    """Return a setting that the user gave an index before, or "" if there is none."""
    return "" if current is None else current.database.setting(name)


def _check_present(listings: Sequence[RootListing], given: Sequence[str | Path], current: FoundIndex | None) -> None:
    """Raise DataError for an empty root, unless the index holds items of it, which are kept."""
    for listing in listings:
        is_held = current is not None and any(current.database.walk(listing.root.number))
        if not listing.missing or is_held:
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
        raise DataError(f"there is no image in {folder}: give a folder with images, in it or in its subfolders{what}")


def _check_still_there(listings: Sequence[RootListing]) -> None:
    """Raise DataError if a root vanished after it was listed, because its images are not gone."""
    for listing in listings:
        if not listing.missing and not Path(listing.root.path).exists():
            raise DataError(
                f"{escaped(listing.root.path)} is no longer there: what was embedded is kept; connect it, and run the "
                f"same command again"
            )
