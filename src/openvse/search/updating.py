"""One way to update an index: its items, its query bank, its engine, and the towers beside it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from openvse.errors import DataError, IndexFormatError, ModelError
from openvse.files import given_path
from openvse.indexing.build import IndexReport, build_index
from openvse.indexing.database import READER
from openvse.indexing.embedding import Sharing, StoredImages
from openvse.indexing.index import Index
from openvse.indexing.manifest import IndexSettings, place_of
from openvse.indexing.readings import TextReport, read_texts
from openvse.indexing.writer import IndexFolder, forget_folder
from openvse.media.text_reading import TextReader, open_reader
from openvse.pipeline import WorkProgress
from openvse.runtime.beside import Towers, remove_other_towers
from openvse.runtime.model import load_embedder
from openvse.search.bank import update_bank
from openvse.search.provided import STORED_FEATURES, TOWERS
from openvse.stores.following import EngineReport, plan_engine

StepProgress = Callable[[str, WorkProgress], None]
"""Called with a step (``images``, ``query bank``, ``engine``, ``towers``, ``text``) and its progress."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexUpdate:
    """The result of an update of an index.

    Attributes:
        bank: the number of ``queries`` of the query bank, their ``source`` (``model`` or ``given``) and its
            ``reliability``, or None without one.
        towers: the towers beside the index, or None if the model has none, such as an exported one.
        text: the report on the text in the images, or None for an index that reads none.
    """

    items: IndexReport
    bank: Mapping[str, int | float | str] | None
    engine: EngineReport
    towers: Towers | None
    text: TextReport | None = None

    def __repr__(self) -> str:
        return f"IndexUpdate({self.items})"


def index(
    model: Any,
    folder: str | Path | Sequence[str | Path],
    out: str | Path = "index",
    settings: IndexSettings | None = None,
    *,
    batch_size: int = 64,
    add: bool = False,
    forget: Sequence[str | Path] = (),
    features: str | Path | StoredImages | None = None,
    overwrite: bool = False,
    check: bool = False,
    if_changed: bool = False,
    sharing: Sharing | None = None,
    threads: int | None = None,
    progress: StepProgress | None = None,
) -> IndexUpdate:
    """Make an index of folders, or update one at the cost of the changes since. ``build_index`` has more arguments.

    Args:
        model: the model that embeds, exported or not, or its place, as ``openvse.load`` takes it.
        folder: a folder of images, at any depth, or several, or a text file with a sentence a line.
        settings: the settings that the index remembers.
        progress: called after every batch. See ``StepProgress``.
        forget: folders to remove from the index, with their items. Folders inside others must be gone or empty.
        features: a feature store, read instead of images that have not changed since. Default: the run's store.
        if_changed: end after the comparison of the folders, if nothing in them has changed.
        threads: the number of CPU threads that read text. None takes the processor's number.

    Raises:
        DataError: no image can be used, or an argument is not allowed.
        EngineError: the engine cannot be reached, or cannot serve the model.
        IndexFormatError: the index cannot be written, or belongs to another model or other folders.
        ModelError: no index can serve the model, or an exported model lacks a function that only the model itself has.
    """
    model = load_embedder(str(model)) if isinstance(model, str | Path) else model
    out, wanted = given_path(out, "the folder of the index"), settings or IndexSettings()
    tell = progress or (lambda step, state: None)
    reader = open_reader(wanted.read_text, threads) if wanted.read_text else None
    stored = _allowed(model, wanted, features, sharing)
    place = place_of(source, out) if (source := getattr(model, "source", "")) else None
    change = plan_engine(out, wanted.engine, model=model)
    for each in forget:
        forget_folder(out, each)
    build = partial(build_index, model, folder, batch_size=batch_size, add=add, overwrite=overwrite)
    build = partial(build, settings=wanted, check=check, sharing=sharing)
    build = partial(build, stored=stored, model_place=place, progress=partial(tell, "images"))
    with IndexFolder(out) as opened:
        items, found = build(opened), opened.find()
        assert found is not None, "it was built just now"
        if if_changed and items.is_unchanged:
            return IndexUpdate(items, None, EngineReport("exact"), None)
        if check:
            Index.of(out, found.manifest, found.database).check()
        held = update_bank(found, model, wanted.query_bank, progress=_timed(tell, "query bank", "sentences"))
        noted = found.database.setting(READER)
    sent, towers = change.apply(out, _timed(tell, "engine")), _write_towers(out, model, wanted.towers, tell)
    text = _read_text(out, noted, wanted.read_text, reader, threads, partial(tell, "text"))
    return IndexUpdate(items, held, sent, towers, text)


def _read_text(
    out: Path,
    noted: str,
    wanted: str | TextReader | None,
    reader: TextReader | None,
    threads: int | None,
    tell: Callable[[WorkProgress], None],
) -> TextReport | None:
    """Read the images by the reader, else by the noted one, with a warning if it is not here. ``none`` forgets."""
    try:
        reader = open_reader(noted, threads) if noted and not wanted else reader
    except DataError as error:
        _logger.warning("the text of new images is not read: %s", error)
        return None
    return read_texts(out, reader, tell) if reader is not None or (noted and wanted) else None


def _allowed(
    model: Any, wanted: IndexSettings, features: str | Path | StoredImages | None, sharing: Sharing | None
) -> StoredImages | None:
    """Return the stored features that may replace images. Raise ModelError if the model cannot use them."""
    if not hasattr(model, "has_whole"):
        raise ModelError(f"the model is {model!r:.60}: give a model that openvse.load returns, or its place")
    if isinstance(features, StoredImages):
        return features
    if model.has_whole:
        if not (source := getattr(model, "source", "")) and features is None:
            return None
        return STORED_FEATURES.get()(model, source, None if features is None else Path(features))
    what = {
        "reads no clips: leave out segment_seconds": wanted.segment_seconds,
        "reads no feature store: leave out features": features,
        "embeds in one process: leave out the processes": sharing,
    }
    for refused, given in what.items():
        if given:
            raise ModelError(f"an exported model {refused}, or name the model folder")
    return None


def _write_towers(out: Path, model: Any, wanted: str | None, tell: StepProgress) -> Towers | None:
    """Write the towers of the model beside the index, which is searchable already. Some embedders have none."""
    if not model.has_whole:
        remove_other_towers(out, model.fingerprint)
    if not model.has_whole or not hasattr(model, "source"):
        return None

    def show(done: int, total: int) -> None:
        tell("towers", WorkProgress(done, total, 0.0, "steps"))

    try:
        return TOWERS.get()(model, out, wanted, progress=show)
    except (OSError, IndexFormatError) as error:
        _logger.warning("searches load PyTorch until 'openvse index' has written the towers: %s", error)
        return None


def _timed(tell: StepProgress, step: str, unit: str = "images") -> Callable[[int, int], None]:
    """Return a function that reports (finished items, items in all), and the items a second since now."""
    started = time.perf_counter()

    def report(done: int, total: int) -> None:
        tell(step, WorkProgress(done, total, done / max(1e-9, time.perf_counter() - started), unit))

    return report
