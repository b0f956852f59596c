"""The towers beside an index, and the model behind them for all other work. See ``runtime.beside``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from openvse import __version__
from openvse.errors import DataError, IndexFormatError, ModelError
from openvse.files import several
from openvse.halves import missing_package
from openvse.indexing.manifest import IndexManifest, find_model
from openvse.media.images import read_image
from openvse.media.names import is_image
from openvse.media.videos import ClipSource
from openvse.runtime import OnnxModel
from openvse.runtime.arrays import ArraySet
from openvse.runtime.beside import left_out_of, towers_of
from openvse.runtime.description import is_export
from openvse.scoring.calibration import read_calibration
from openvse.scoring.hubs import read_arrays
from openvse.search.query import as_arrays

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
        reason = left_out_of(folder, __version__).get(
            "text", "the index has no towers of its model beside it"
        )
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
