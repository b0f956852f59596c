"""The model of a search or an index: a model folder, or an exported model, which needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from openvse.cli.progress import detail, warn

if TYPE_CHECKING:
    from openvse.indexing.manifest import IndexManifest

LoadedModel: TypeAlias = Any


def load_for_index(
    folder: Path,
    manifest: IndexManifest,
    named: str | None = None,
    *,
    device: str = "cpu",
    threads: int | None = None,
) -> LoadedModel:
    """Load what embeds the queries of an index: the towers beside it, or else a model; ``--verbose`` says which."""
    from openvse.indexing import find_model
    from openvse.runtime import load_embedder
    from openvse.search.towers import open_towers

    def whole() -> LoadedModel:
        source = named
        if source is None:
            source, warning = find_model(folder, manifest)
            if warning:
                warn(warning)
        detail(f"the model of {source} is loaded")
        return load_embedder(source, device=device, threads=threads)

    if named is not None or device != "cpu":
        detail("the towers beside the index are not used, as a model or a device is named")
        return whole()
    towers, reason = open_towers(folder, manifest, whole, threads=threads)
    if towers is None:
        detail(f"the towers beside the index are not used: {reason}")
        return whole()
    images = ", images too" if towers.description.image.file else ""
    detail(f"the towers beside the index embed queries, without PyTorch (texts{images})")
    return towers
