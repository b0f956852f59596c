"""Extraction by many processes: each makes whole shards of a store, which are joined in their order.

    shards/DIGEST/     a store with the features of one shard, while it is made and until it is joined
    shards/DIGEST.json a note that the shard is complete: the last id in it, and the ids that cannot be used

A shard is a whole number of batches, so it holds the bytes that one process would have written. A note outlives its
shard until the end: after a stop, the items that could not be used are tried again after all others, so that the other
shards stay what they were.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

from openvse.features.layout import MANIFEST, StoreManifest, read_ids
from openvse.features.sources import SourceLog
from openvse.features.writer import FeatureStoreWriter
from openvse.files import write_whole, writing
from openvse.workers import Workers, share_work

SHARDS = "shards"
ITEMS_IN_SHARD = 1024

Content = TypeVar("Content")

Failures = list[tuple[Content, str]]
"""What could not be used, each with the reason."""


@dataclass(frozen=True)
class Shard(Generic[Content]):
    """Some items of an extraction, in their order.

    Attributes:
        number: 0 for the first.
        items: identifier and content of each.
        folder: its store.
    """

    number: int
    items: tuple[tuple[str, Content], ...]
    folder: Path


@dataclass(frozen=True)
class Done(Generic[Content]):
    """A shard that is complete.

    Attributes:
        number: that of the shard.
        failed: what could not be used; empty if an earlier run told it.
    """

    number: int
    failed: Failures[Content] = field(default_factory=list)


Extract = Callable[[Sequence[tuple[str, Content]], Path], Failures[Content]]
"""Adds the features of items to a store that it makes, and returns what could not be used."""


def extract_in_shards(
    prepare: Callable[[], Extract[Content]],
    items: Sequence[tuple[str, Content]],
    writer: FeatureStoreWriter,
    sources: SourceLog | None = None,
    *,
    settings: str,
    shard_size: int,
    workers: Workers,
) -> Iterator[tuple[int, Failures[Content]]]:
    """Let workers extract the features of items, and join them to a store in the order of the items.

    Args:
        prepare: what each worker calls once, and which returns what extracts a shard there.
        items: identifier and content of all items, none of which is in the store yet.
        writer: of the store.
        sources: of the store, if the items have files.
        settings: all that the features depend on beside the items.
        shard_size: how many items a shard has: a multiple of a batch.
        workers: who extracts.

    Yields:
        How many items a shard added, and those that could not be used, shard by shard.

    Raises:
        OpenVSEError: what ``share_work`` or a worker raises.
    """
    folder = writer.path / SHARDS
    with writing(folder):
        folder.mkdir(exist_ok=True)
    tried = _tried(folder, writer)
    ordered = sorted(items, key=lambda item: item[0] in tried)  # stable
    shards = _cut(ordered, shard_size, folder, settings)
    done = [Done[Content](shard.number) for shard in shards if _is_complete(shard)]
    known = {each.number for each in done}
    todo = [shard for shard in shards if shard.number not in known]
    made = share_work(partial(_prepared, prepare), todo, workers) if todo else iter(())
    waiting: dict[int, Done[Content]] = {}
    joined = 0
    for each in chain(done, made):
        waiting[each.number] = each
        while joined in waiting:
            added = _join(shards[joined], writer, sources)
            yield added, waiting.pop(joined).failed
            joined += 1
    shutil.rmtree(folder)


def forget_shards(store: Path) -> None:
    """Remove what a stopped extraction by workers left, once one process has extracted all items."""
    shutil.rmtree(store / SHARDS, ignore_errors=True)


def _prepared(prepare: Callable[[], Extract[Content]]) -> Callable[[Shard[Content]], Done[Content]]:
    return partial(_make, prepare())


def _make(extract: Extract[Content], shard: Shard[Content]) -> Done[Content]:
    """Extract a shard from its beginning, and then note that it is complete."""
    with writing(shard.folder):
        shutil.rmtree(shard.folder, ignore_errors=True)
        shard.folder.mkdir(parents=True)
        failed = extract(shard.items, shard.folder)
        ids = _ids(shard.folder)
        bad = sorted({item for item, _ in shard.items} - set(ids))
        note = {"last": ids[-1] if ids else None, "failed": bad}
        write_whole(_note(shard.folder), json.dumps(note))
    return Done(shard.number, failed)


def _join(shard: Shard[Content], writer: FeatureStoreWriter, sources: SourceLog | None) -> int:
    """Add a shard to the store, and return how many items that were."""
    added = len(_ids(shard.folder))
    if added:
        if sources is not None:
            sources.copy(shard.folder)
        writer.append(shard.folder)
        writer.commit()
    with writing(shard.folder):
        shutil.rmtree(shard.folder)
    return added


def _tried(folder: Path, writer: FeatureStoreWriter) -> frozenset[str]:
    """Return the items that could not be used, of the shards that have been joined."""
    tried: list[str] = []
    for path in folder.glob("*.json"):
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if note["last"] is None or note["last"] in writer:
            tried += note["failed"]
    return frozenset(tried)


def _cut(
    items: Sequence[tuple[str, Content]], size: int, folder: Path, settings: str
) -> list[Shard[Content]]:
    shards = []
    for number, start in enumerate(range(0, len(items), size)):
        some = tuple(items[start : start + size])
        digest = hashlib.sha256(settings.encode())
        for item, content in some:
            digest.update(f"{item}\0{content}\n".encode(errors="surrogateescape"))
        shards.append(Shard(number, some, folder / digest.hexdigest()[:32]))
    return shards


def _is_complete(shard: Shard[Content]) -> bool:
    """Return whether an earlier run made the shard and did not join it."""
    return shard.folder.exists() and _note(shard.folder).exists()


def _note(folder: Path) -> Path:
    return folder.with_suffix(".json")


def _ids(folder: Path) -> tuple[str, ...]:
    return read_ids(folder, StoreManifest.read(folder)) if (folder / MANIFEST).exists() else ()
