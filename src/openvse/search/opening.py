"""What openvse wrote, opened by its place: an index with its model, or a model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, TypeAlias

from openvse.errors import IndexFormatError
from openvse.files import given_path
from openvse.indexing.index import Index
from openvse.indexing.manifest import IndexManifest, find_model, index_folder, read_manifest
from openvse.runtime import load_embedder
from openvse.search.engine import SearchEngine
from openvse.search.towers import open_towers

LoadedModel: TypeAlias = Any

_RUN = ("recipe.yaml", "last.pt")  # files that a run writes first

_logger = logging.getLogger(__name__)


def open(place: str | Path, *, model: str | Path | None = None, device: str = "cpu") -> Any:
    """Open what openvse wrote: an index, or a run that has one, as a ``SearchEngine``, and a model as itself.

    An index finds its model. A model that was exported is opened without PyTorch.

    Args:
        place: the folder of an index, of a run with its ``index/``, or of a model; or a name as ``openvse.load`` takes.
        model: the model of the index, if it is no longer where the index says.
        device: where a model of PyTorch computes.

    Raises:
        IndexFormatError: the run has no index yet, or the index is damaged or does not find its model.
        ModelError: there is no such model, or it needs PyTorch, which is not installed.

    Examples:
        >>> for hit in openvse.open("runs/mine").search("a dog", top_k=3):  # doctest: +SKIP
        ...     print(hit.path)
    """
    given = given_path(place, "what to open")
    folder = index_folder(given)
    if folder is None:
        if any((given / name).is_file() for name in _RUN):
            raise IndexFormatError(
                f"{place} is a run without an index: make one with openvse.index({str(place)!r}, 'photos', "
                f"out={str(given / 'index')!r}), or open its model with openvse.load"
            )
        return load_embedder(str(place), device=device)
    named = None if model is None else str(model)
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
    """Load what embeds the queries of an index: the towers beside it, or else a model; the log says which."""

    def whole() -> LoadedModel:
        source = named
        if source is None:
            source, warning = find_model(folder, manifest)
            if warning:
                _logger.warning("%s", warning)
        _logger.info("the model of %s is loaded", source)
        return load_embedder(source, device=device, threads=threads)

    if named is not None or device != "cpu":
        _logger.info("the towers beside the index are not used, as a model or a device is named")
        return whole()
    towers, reason = open_towers(folder, manifest, whole, threads=threads)
    if towers is None:
        _logger.info("the towers beside the index are not used: %s", reason)
        return whole()
    images = ", images too" if towers.description.image.file else ""
    _logger.info("the towers beside the index embed queries, without PyTorch (texts%s)", images)
    return towers
