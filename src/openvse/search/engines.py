"""The engine of an index: choosing it, keeping it up to date, opening it, and measuring what it misses."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int

from openvse.errors import EngineBusyError, EngineError, IndexFormatError
from openvse.files import locked
from openvse.functional import normalize
from openvse.index.database import Database
from openvse.index.index import Index
from openvse.index.manifest import read_manifest
from openvse.search.backend import Engine, VectorBackend
from openvse.search.exact import ExactBackend
from openvse.search.point_engine import PointEngine
from openvse.stores import open_store
from openvse.stores.engine_choice import EngineChoice
from openvse.stores.engine_state import EngineState, stamp
from openvse.stores.points import Facts, PointStore, read_metadata
from openvse.stores.served_store import Note, ServedStore
from openvse.types import EmbeddingSet

_logger = logging.getLogger(__name__)

_ITEMS = 2048  # put at once
_KEPT = 16  # so many times that, the state is written


@dataclass(frozen=True)
class EngineReport:
    """What bringing an engine up to date did.

    Attributes:
        choice: the engine.
        put: items that were new to it, or had changed.
        removed: items that were gone.
    """

    choice: EngineChoice
    put: int = 0
    removed: int = 0


def choose_engine(
    path: str | Path, name: str | None = None, url: str | None = None, *, model: object = None
) -> EngineChoice:
    """Note in an index which engine searches it, and remove the data of the one before.

    Args:
        path: folder of the index.
        name: of the engine; None keeps the one that is noted.
        url: of its server, for those that have one. Its secrets are used and never written.
        model: the model that is to be served.

    Returns:
        The engine; ``update_engine`` fills it.

    Raises:
        EngineError: there is no such engine, it needs another URL, or it cannot serve the model.
        IndexFormatError: there is no index, or another process writes it.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    before = EngineChoice.of(manifest.engine)
    wanted = before if name is None else EngineChoice.new(name, url)
    if (wanted.name, wanted.url) == (before.name, before.url):
        return before
    if wanted.name != "exact" and model is not None:
        check_served(wanted.name, model)
    with locked(folder, "index", IndexFormatError):
        _drop(folder, before, manifest.num_embeddings, manifest.dim)
        replace(read_manifest(folder), engine=wanted.noted()).write(folder)
    return wanted


def check_served(name: str, model: object) -> None:
    """Raise EngineError where inner products do not order items as the model's similarity does."""
    if getattr(model, "indexable", True):
        return
    similarity = type(getattr(model, "similarity", model)).__name__
    raise EngineError(
        f"the engine {name} finds the largest inner products, which do not rank as this model's similarity "
        f"({similarity}) does: take the exact engine, or score pairs with model.score"
    )


def update_engine(
    path: str | Path, *, url: str | None = None, progress: Callable[[int, int], None] | None = None
) -> EngineReport:
    """Bring the engine of an index up to date; it costs what has changed since the last time.

    Args:
        path: folder of the index.
        url: of the server, with its secrets; None takes what the index and the environment say.
        progress: called with how many items are done, and how many there are to do.

    Raises:
        EngineError: the engine cannot be reached or refuses.
        IndexFormatError: there is no index, or another process writes it.
    """
    folder = Path(path)
    choice = EngineChoice.of(read_manifest(folder).engine)
    if choice.name == "exact":
        return EngineReport(choice)
    with locked(folder, "index", IndexFormatError):
        index = Index.open(folder)
        shape = index.manifest.num_embeddings, index.manifest.dim
        store = open_store(choice, folder, shape, url=url, create=True)
        try:
            report = _Update(index, choice, store).run(progress)
            if isinstance(store, ServedStore) and store.note() != (said := Note.of(index).plain()):
                store.write_note(said)
            return report
        finally:
            store.close()


class _Update:
    """One update of an engine."""

    def __init__(self, index: Index, choice: EngineChoice, store: PointStore) -> None:
        self._index, self._choice, self._store = index, choice, store
        self._file = state_file(index.path, choice)
        self._state = EngineState.read(self._file)
        # Somebody has emptied the server, or it is another one: everything is put again.
        if store.num_points() < int((self._state.stamps >= 0).sum()) * index.manifest.num_embeddings:
            self._state = EngineState.empty()

    def run(self, progress: Callable[[int, int], None] | None) -> EngineReport:
        table = self._index.table
        stamps, facts = self._told()
        gone = self._state.keys[~np.isin(self._state.keys, table.keys)]
        changed = np.flatnonzero(self._state.stamps_of(table.keys) != stamps)
        if not len(gone) and not len(changed):
            return EngineReport(self._choice)
        self._state = self._state.doubted(np.concatenate([gone, table.keys[changed]]))
        self._state.write(self._file)
        if len(gone):
            self._store.remove(gone)
            self._state = self._state.without(gone)
        for number, start in enumerate(range(0, len(changed), _ITEMS), start=1):
            some = changed[start : start + _ITEMS]
            self._store.put(
                table.keys[some], self._index.gather(some), [facts(place) for place in some.tolist()]
            )
            self._state = self._state.changed(table.keys[some], stamps[some])
            if number % _KEPT == 0:
                self._state.write(self._file)
            if progress is not None:
                progress(start + len(some), len(changed))
        self._store.finish()
        self._state.write(self._file)
        return EngineReport(self._choice, len(changed), len(gone))

    def _told(self) -> tuple[Int[np.ndarray, "count"], Callable[[int], Facts]]:
        """Return the stamps of all items, and what the store is told of each."""
        index = self._index
        with Database(index.path / index.manifest.items) as database:
            said = {row[0]: row[1:] for row in database.read("SELECT key, kind, metadata FROM items")}
        table = index.table
        rows = [said.get(key, ("image", None)) for key in table.keys.tolist()]
        sums = table.checksums.tolist()
        stamps = np.array([stamp(each, row[1]) for each, row in zip(sums, rows, strict=True)], np.int64)

        def facts(place: int) -> Facts:
            kind, metadata = rows[place]
            times = int(table.modified_ns[place]), int(table.sizes[place])
            return Facts(table.ids[place], str(kind), *times, read_metadata(metadata))

        return stamps, facts


def open_engine(
    index: Index,
    exact: ExactBackend,
    *,
    name: str | None = None,
    url: str | None = None,
    model: object = None,
    is_linear: bool = True,
) -> Engine:
    """Open the engine of an index for searching.

    Args:
        index: what to search.
        exact: the exact engine of this index and the model that is served.
        name: the engine that is wanted: the one of the index, or the exact one; None takes that of the index.
        url: of its server, with its secrets; None takes what the index and the environment say.
        model: the model that is served.
        is_linear: whether its score is the largest inner product itself.

    Raises:
        EngineError: the index has another engine, or it cannot be reached, or cannot serve the model.
    """
    if name == "exact":
        return exact
    choice = EngineChoice.of(index.manifest.engine)
    if name not in (None, choice.name):
        raise EngineError(
            f"index {index.path} has the engine {choice.name}, not {name}: leave --engine out, give exact, or run "
            f"'openvse index ... --engine {name}'"
        )
    if choice.name == "exact":
        return exact
    check_served(choice.name, model)
    shape = index.manifest.num_embeddings, index.manifest.dim
    state = EngineState.read(state_file(index.path, choice))
    try:
        store = open_store(choice, index.path, shape, url=url)
    except EngineBusyError as error:
        if name is not None:
            raise
        _logger.warning("%s; the search is exact", error)
        return exact
    return PointEngine(choice.name, index, store, state, exact, is_linear=is_linear)


def measured_recall(engine: VectorBackend, index: Index, *, sample: int = 100, top_k: int = 10) -> float:
    """Return the share of the best items that an engine finds, by the exact engine; drawn in the same way each time.

    A query is the mean of the embeddings of two random items, which lies between them as a sentence does that fits
    several images, and is harder to answer than an item's own embedding.

    Args:
        engine: the engine to check.
        index: what it searches.
        sample: how many queries.
        top_k: how many items of each.
    """
    draw = np.random.default_rng(0)
    pairs = draw.integers(len(index), size=(2, sample))
    first, second = (torch.from_numpy(index.gather(each).astype(np.float32))[:, :1] for each in pairs)
    queries = EmbeddingSet(normalize(first + second), torch.ones(sample, 1, dtype=torch.bool))
    truth = ExactBackend(index.segments).search(queries, top_k)[1].tolist()
    found = engine.search(queries, top_k)[1].tolist()
    hits = [len(set(mine) & set(best)) / max(1, len(best)) for mine, best in zip(found, truth, strict=True)]
    return float(np.mean(hits))


def state_file(folder: Path, choice: EngineChoice) -> Path:
    """Return where an index notes what its engine holds."""
    return folder / f"{choice.place}.npy"


def drop_replaced(path: str | Path, before: EngineChoice) -> None:
    """Remove the data of an engine of an index that another one has taken the place of."""
    manifest = read_manifest(Path(path))
    if EngineChoice.of(manifest.engine).place != before.place:
        _drop(Path(path), before, manifest.num_embeddings, manifest.dim)


def _drop(folder: Path, choice: EngineChoice, num_embeddings: int, dim: int) -> None:
    """Remove the data of an engine that an index does not have any more; a server may be out of reach."""
    if choice.name == "exact":
        return
    try:
        store = open_store(choice, folder, (num_embeddings, dim))
        store.drop()
        store.close()
    except EngineError as error:
        if choice.url:
            _logger.warning(
                "what the engine %s holds in %s was not removed: %s", choice.name, choice.place, error
            )
        shutil.rmtree(folder / choice.place, ignore_errors=True)
    state_file(folder, choice).unlink(missing_ok=True)
