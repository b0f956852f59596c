"""Opening by a place: an index with its model, a folder with the index beside it, or a model.

The exported towers beside an index answer texts, and the model behind them does all other work (``runtime.beside``).
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from openvse import __version__
from openvse.errors import DataError, IndexFormatError, ModelError
from openvse.files import given_path, several, user_cache
from openvse.halves import missing_package, usable_device
from openvse.indexing.index import Index
from openvse.indexing.manifest import MANIFEST, IndexManifest, find_model, index_folder, read_manifest
from openvse.media.images import read_image
from openvse.media.names import escaped, is_image
from openvse.media.videos import ClipSource
from openvse.runtime import OnnxModel
from openvse.runtime.arrays import ArraySet
from openvse.runtime.beside import left_out_of, towers_of
from openvse.runtime.model import EXPORT, is_export, load_embedder
from openvse.scoring.calibration import read_calibration
from openvse.scoring.hubs import read_arrays
from openvse.search.engine import SearchEngine
from openvse.search.exact import as_arrays
from openvse.search.provided import DESCRIBER, MODEL_OF_NAMES, MODEL_SIZE

if TYPE_CHECKING:  # a query needs no indexer
    from openvse.indexing.build import IndexReport
    from openvse.search.updating import StepProgress

LoadedModel: TypeAlias = Any

MODEL_VARIABLE = "OPENVSE_MODEL"
"""The model of a first index, if none is named."""

BUILT_IN = "names"
"""The model of a first index that needs no download (``retrieval.names``). It lies in the folder of the index."""

_FIRST_MODEL = "clip-b32"
_OWN_MODEL = "model"
_FINDS = "finds things, animals and places outdoors, but not people, colours or counts"
_RUN = ("recipe.yaml", "last.pt")  # files that a run writes first
_IMAGE_S = 0.1  # seconds of one core for an image: measured for clip-b32, with its decoding

_logger = logging.getLogger(__name__)


class IndexTowers(OnnxModel):
    """The exported towers beside an index, and its model for images and very long sentences.

    ``load`` loads the model that made the index. It is called when it is first needed.
    """

    def __init__(self, folder: Path, load: Callable[[], Any], *, threads: int | None = None) -> None:
        super().__init__(folder, threads=threads)
        self.source = ""  # the index says where the model is
        self._load, self._whole, self._loading = load, None, Lock()
        self.open("text")
        self.tokenizer.tokenize([""])

    @property
    def reads_images(self) -> bool:
        """Whether the model reads images, and its image tower or the model itself is there."""
        return super().reads_images and (bool(self.description.image.file) or self.has_whole)

    @property
    def makes_index(self) -> bool:
        """Whether the model itself is there, whose embeddings an index holds."""
        return super().reads_images and self.has_whole

    @property
    def has_whole(self) -> bool:
        """Whether the model itself can be loaded."""
        return not missing_package()

    @property
    def whole(self) -> Any:
        """The model that made the index. Several threads may ask for it.

        Raises:
            IndexFormatError: the model was trained anew since then.
        """
        with self._loading:
            if self._whole is None:
                model = self._load()
                if model.fingerprint != self.fingerprint:
                    raise IndexFormatError(
                        f"an earlier model made the index, so {model.source} cannot embed images for it: make the "
                        f"index anew with 'openvse index --overwrite', or search by a sentence"
                    )
                self._whole = model
            return self._whole

    def encode_text(self, captions: str | Iterable[str], batch_size: int = 256) -> ArraySet:
        """Embed sentences, by the model itself if one has more tokens than the program takes."""
        captions = several(captions, "captions")
        longest = self.description.text.longest or 0
        if any(len(ids) > longest for ids in self.tokenizer.tokenize(captions)):
            return as_arrays(self.whole.encode_text(captions))
        return super().encode_text(captions, batch_size)

    def encode_image(self, images: ClipSource | Iterable[ClipSource], batch_size: int = 64) -> ArraySet:
        """Embed images, by the model itself if their tower is not there."""
        if self.description.image.file:
            try:
                self.open("image")
                return super().encode_image(images, batch_size)  # type: ignore[arg-type]
            except ModelError as error:
                _logger.warning("%s; the model itself embeds images", error)
        return as_arrays(self.whole.encode_image(images))

    def read_image(self, image: ClipSource) -> Any:
        """Decode an image or clip for the model itself, whose embeddings an index holds."""
        if self._whole is None and isinstance(image, Path) and is_image(image.name):
            read_image(image)  # a broken one is no reason to load the model
        return self.whole.read_image(image)

    def encode_pixels(self, images: Sequence[Any]) -> Any:
        """Embed the results of ``read_image`` by the model itself."""
        return self.whole.encode_pixels(images)


def open_towers(
    index: Path, manifest: IndexManifest, load: Callable[[], Any], *, threads: int | None = None
) -> tuple[IndexTowers | None, str]:
    """Open the towers beside an index, if its model made them, or return None and the reason."""
    folder = towers_of(index, manifest.model)
    if not is_export(folder):
        reason = left_out_of(folder, __version__).get("text", "the index has no towers of its model beside it")
        return None, reason or "towers are not wanted beside this index"
    if find_spec("onnxruntime") is None:
        return None, "ONNX Runtime is not installed"
    try:
        towers = IndexTowers(folder, load, threads=threads)
    except ModelError as error:
        _logger.warning("the towers beside index %s are not used: %s", index, error)
        return None, "the towers beside the index cannot be read"
    if towers.fingerprint != manifest.model:
        return None, "the towers beside the index are of another model"
    with suppress(IndexFormatError):  # the model has a curve that is newer, or it is gone
        source = Path(find_model(index, manifest)[0])
        curve = read_calibration(source) if source.is_dir() else None
        of_folder = curve.model if curve is not None else _model_of_bank(source)
        if of_folder and of_folder != manifest.model:
            _logger.warning(
                "index %s was made by an earlier model of %s, and is searched with that: make it anew with "
                "openvse index %s FOLDER --out %s --overwrite",
                *(index, source, source, index),
            )
        elif source.is_dir():
            towers.calibration = curve
    return towers, ""


def _model_of_bank(folder: Path) -> str:
    """Return the fingerprint of the model in a folder, as its query bank states it, or ""."""
    with suppress(DataError):
        return str(read_arrays(folder, ["model"])["model"])
    return ""


def open(place: str | Path, *, model: str | Path | None = None, device: str = "cpu", make: bool = False) -> Any:
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
    return SearchEngine(load_for_index(folder, read_manifest(folder), named, device=device), Index.open(folder))


def load_for_index(
    folder: Path, manifest: IndexManifest, named: str | None = None, *, device: str = "cpu", threads: int | None = None
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
        size = f", {load}," if (load := _download_of(self.model)) else ""
        other = f" (--model {BUILT_IN} needs no download, and {_FINDS})" if load else ""
        return (
            f"{escaped(self.folder)} has no index yet: one of {self.count:,} images by the model {self.model}{size} "
            f"takes about {minutes:,} minute(s), and will be {escaped(self.out)}{other}"
        )

    def load(self, device: str, *, is_chosen: bool) -> LoadedModel:
        """Load the model. Where nobody chose one, and the published model cannot be had, load the built-in one."""
        if self.model != BUILT_IN:
            try:
                return load_embedder(self.model, device=device)
            except ModelError as error:
                if is_chosen:
                    raise
                _logger.warning("%s", error)
        place = self.out / _OWN_MODEL
        MODEL_OF_NAMES.get()(self.folder, place)
        _logger.warning(
            "the index is by the model of names, which %s. A better one (%s): openvse index %s %s --out %s --overwrite",
            *(_FINDS, _download_of(_FIRST_MODEL), _FIRST_MODEL, escaped(self.folder), escaped(self.out)),
        )
        return load_embedder(str(place), device=device)


def _download_of(model: str) -> str:
    """Return the size of a published model in words, "" for any other."""
    megabytes = 0 if missing_package() else MODEL_SIZE.get()(model)
    return f"a download of {megabytes:,} MB" if megabytes else ""


def holds_pictures(place: str | Path) -> bool:
    """Return whether a place is a folder that is neither a run, a model nor an index."""
    folder = Path(place)
    try:
        own = any((folder / name).is_file() for name in (*_RUN, EXPORT, "config.json"))
        return folder.is_dir() and not own and index_folder(folder) is None
    except (OSError, ValueError):  # a sentence may be longer than any name
        return False


def _is_own(index: Path) -> bool:
    """Return whether an index, if it is there, belongs to this user with all of its files, and none is a link."""
    if not os.path.lexists(index) or not hasattr(os, "getuid"):  # Windows
        return True
    stats = [each.lstat() for each in (index, *(index.iterdir() if index.is_dir() else ()))]
    return all(each.st_uid == os.getuid() and not stat.S_ISLNK(each.st_mode) for each in stats)


def place_of_index(folder: Path) -> Path:
    """Return the present or future place of the index of a folder: beside it, or in the user's cache if need be.

    What somebody else has put beside a folder is not used.
    """
    whole = folder.resolve()
    beside = whole.parent / f"{whole.name}.index"
    cache = user_cache() / "indexes"
    name = f"{whole.name}-{hashlib.blake2b(os.fsencode(whole), digest_size=6).hexdigest()}"
    is_beside = os.access(whole.parent, os.W_OK) and whole.name
    if not _is_own(beside):
        _logger.warning("%s is a link or not all yours, so it is not used: name it, if you trust it", escaped(beside))
        return cache / name
    places = [beside, cache / name] if is_beside else [cache / name, beside]
    return next((each for each in places if (each / MANIFEST).is_file()), places[0])


def open_pictures(
    folder: Path,
    model: str | None,
    agreed: Callable[[FirstIndex], None],
    *,
    device: str = "cpu",
    teach: bool = False,
    progress: StepProgress | None = None,
) -> tuple[Path, LoadedModel, IndexReport | None]:
    """Return the index of a folder of images, the embedder of its queries, and the result of an update, if any.

    The index is made if there is none, and ``agreed`` returns. Otherwise it is updated. The model itself is loaded only
    if there is something to embed. With ``teach``, a first index is by the built-in model, which can learn at once.
    """
    from openvse.media.listing import list_media, rules_of
    from openvse.search.updating import index

    out = place_of_index(folder)
    if not (out / MANIFEST).is_file():
        if not (count := len(list_media(folder, ignored=rules_of(folder)).names)):
            raise DataError(f"{escaped(folder)} is no index, and holds no image: give an index, or a folder of images")
        chosen = model or os.environ.get(MODEL_VARIABLE) or (BUILT_IN if teach else None)
        plan = FirstIndex(folder, out, chosen or _FIRST_MODEL, count)
        agreed(plan)
        loaded = plan.load(device, is_chosen=bool(chosen))
        out.mkdir(parents=True, exist_ok=True)
        out.chmod(0o700 | (folder.stat().st_mode & 0o777))  # whoever may not see the pictures sees no index of them
        told = None if progress is None else partial(progress, "images")
        seen = DESCRIBER.get()(loaded, folder, out, told) if teach else None
        return out, loaded, index(loaded, folder, out, features=seen, progress=progress).items
    own = model == BUILT_IN and any(out.glob(f"{_OWN_MODEL}*"))
    loaded = load_for_index(out, read_manifest(out), None if own else model, device=device)
    try:
        has_towers = isinstance(loaded, OnnxModel)  # a stopped first search may have left none
        report = index(loaded, folder, out, if_changed=has_towers, progress=progress).items
    except IndexFormatError as error:  # another process writes it, or nobody may
        _logger.warning("the index is searched as it is: %s", error)
        return out, loaded, None
    return out, loaded, None if report.is_unchanged else report
