"""Opening by a place: an index with its model, a folder with the index beside it, or a model."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from openvse.errors import DataError, IndexFormatError
from openvse.files import given_path, user_cache
from openvse.halves import missing_package, training_module, usable_device
from openvse.indexing.index import Index
from openvse.indexing.manifest import MANIFEST, IndexManifest, find_model, index_folder, read_manifest
from openvse.media.names import escaped
from openvse.runtime import OnnxModel
from openvse.runtime.description import EXPORT
from openvse.runtime.model import load_embedder
from openvse.search.engine import SearchEngine
from openvse.search.towers import open_towers

if TYPE_CHECKING:  # a query needs no indexer
    from openvse.indexing.build import IndexReport
    from openvse.search.updating import StepProgress

LoadedModel: TypeAlias = Any

MODEL_VARIABLE = "OPENVSE_MODEL"
"""The model of a first index, if none is named."""

_FIRST_MODEL = "clip-b32"
_RUN = ("recipe.yaml", "last.pt")  # files that a run writes first
_IMAGE_S = 0.1  # seconds of one core for an image: measured for clip-b32, with its decoding

_logger = logging.getLogger(__name__)


def open(
    place: str | Path, *, model: str | Path | None = None, device: str = "cpu", make: bool = False
) -> Any:
    """Open an index, or a run that has one, as a ``SearchEngine``, and a model as itself.

    An index finds its model. An exported model is opened without PyTorch. A folder of images is opened by the index
    beside it, which is updated first.

    Args:
        place: the folder of an index, of a run with its ``index/``, of images, or of a model, or a name as
            ``openvse.load`` takes.
        model: the model of the index, if it has moved, or the model of the first index of a folder.
        device: the device of a PyTorch model.
        make: make the first index of a folder of images, which may take long and download a model.

    Raises:
        IndexFormatError: the run or folder has no index yet, or the index is damaged or does not find its model.
        ModelError: there is no such model, or it needs PyTorch, which is not installed.

    Examples:
        >>> for hit in openvse.open("runs/mine").search("a dog", top_k=3):  # doctest: +SKIP
        ...     print(hit.path)
    """
    given = given_path(place, "what to open")
    folder, named = index_folder(given), None if model is None else str(model)
    if folder is None and holds_pictures(given):

        def agreed(plan: FirstIndex) -> None:
            if not make:
                raise IndexFormatError(f"{plan}: call openvse.open with make=True")

        folder, loaded, _ = open_pictures(given, named, agreed, device=device)
        return SearchEngine(loaded, Index.open(folder))
    if folder is None:
        if any((given / name).is_file() for name in _RUN):
            raise IndexFormatError(
                f"{place} is a run without an index: make one with openvse.index({str(place)!r}, 'photos', "
                f"out={str(given / 'index')!r}), or open its model with openvse.load"
            )
        return load_embedder(str(place), device=device)
    return SearchEngine(
        load_for_index(folder, read_manifest(folder), named, device=device), Index.open(folder)
    )


def load_for_index(
    folder: Path,
    manifest: IndexManifest,
    named: str | None = None,
    *,
    device: str = "cpu",
    threads: int | None = None,
) -> LoadedModel:
    """Load the embedder of an index's queries: the towers beside it, or else a model. The log names it."""

    def whole() -> LoadedModel:
        source = named
        if source is None:
            source, warning = find_model(folder, manifest)
            if warning:
                _logger.warning("%s", warning)
        _logger.info("the model of %s is loaded", source)
        return load_embedder(source, device=device, threads=threads)

    if named is not None or usable_device(device) != "cpu":
        _logger.info("the towers beside the index are not used, as a model or a device is named")
        return whole()
    towers, reason = open_towers(folder, manifest, whole, threads=threads)
    if towers is None:
        _logger.info("the towers beside the index are not used: %s", reason)
        return whole()
    images = ", images too" if towers.description.image.file else ""
    _logger.info("the towers beside the index embed queries, without PyTorch (texts%s)", images)
    return towers


@dataclass(frozen=True)
class FirstIndex:
    """The first index of a folder of images: its place, its model, and the number of images."""

    folder: Path
    out: Path
    model: str
    count: int

    def __str__(self) -> str:
        """Return the plan: the index to make, its model, and the time it takes."""
        minutes = max(1, round(self.count * _IMAGE_S / (os.cpu_count() or 1) / 60))
        known = {} if missing_package() else training_module("openvse.conversion.published").PUBLISHED
        size = f", a download of {known[self.model].millions * 4:,} MB," if self.model in known else ""
        return (
            f"{escaped(self.folder)} has no index yet: one of {self.count:,} images by the model {self.model}{size} "
            f"takes about {minutes:,} minute(s), and will be {escaped(self.out)}"
        )


def holds_pictures(place: str | Path) -> bool:
    """Return whether a place is a folder that is neither a run, a model nor an index."""
    folder = Path(place)
    try:
        own = any((folder / name).is_file() for name in (*_RUN, EXPORT, "config.json"))
        return folder.is_dir() and not own and index_folder(folder) is None
    except (OSError, ValueError):  # a sentence may be longer than any name
        return False


def place_of_index(folder: Path) -> Path:
    """Return the present or future place of the index of a folder: beside it, or in the user's cache if need be."""
    whole = folder.resolve()
    beside = whole.parent / f"{whole.name}.index"
    cache = user_cache() / "indexes"
    name = f"{whole.name}-{hashlib.blake2b(os.fsencode(whole), digest_size=6).hexdigest()}"
    is_beside = os.access(whole.parent, os.W_OK) and whole.name
    places = [beside, cache / name] if is_beside else [cache / name, beside]
    return next((each for each in places if (each / MANIFEST).is_file()), places[0])


def open_pictures(
    folder: Path,
    model: str | None,
    agreed: Callable[[FirstIndex], None],
    *,
    device: str = "cpu",
    progress: StepProgress | None = None,
) -> tuple[Path, LoadedModel, IndexReport | None]:
    """Return the index of a folder of images, the embedder of its queries, and the result of an update, if any.

    The index is made if there is none, and ``agreed`` returns. Otherwise it is updated. The model itself is loaded only
    if there is something to embed.
    """
    from openvse.media.listing import list_media, rules_of
    from openvse.search.updating import index

    out = place_of_index(folder)
    if not (out / MANIFEST).is_file():
        if not (count := len(list_media(folder, ignored=rules_of(folder)).names)):
            raise DataError(
                f"{escaped(folder)} is no index, and holds no image: give an index, or a folder of images"
            )
        plan = FirstIndex(folder, out, model or os.environ.get(MODEL_VARIABLE) or _FIRST_MODEL, count)
        agreed(plan)
        loaded = load_embedder(plan.model, device=device)
        return out, loaded, index(loaded, folder, out, progress=progress).items
    loaded = load_for_index(out, read_manifest(out), model, device=device)
    try:
        has_towers = isinstance(loaded, OnnxModel)  # a stopped first search may have left none
        report = index(loaded, folder, out, if_changed=has_towers, progress=progress).items
    except IndexFormatError as error:  # another process writes it, or nobody may
        _logger.warning("the index is searched as it is: %s", error)
        return out, loaded, None
    return out, loaded, None if report.is_unchanged else report
