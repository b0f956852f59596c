"""What can be served: the folder of an index, or an engine by its URL; and how to notice that it has changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from openvse.index.manifest import MANIFEST, read_manifest
from openvse.search import Index
from openvse.serving.batching import RememberingModel
from openvse.serving.catalog import Catalog
from openvse.serving.engine_catalog import EngineCatalog
from openvse.serving.index_catalog import IndexCatalog
from openvse.stores.engine_address import EngineAddress

_ASK_AGAIN_S = 15.0


class Source(ABC):
    """Something that can be opened for serving, as often as it changes.

    Attributes:
        pause_s: the least time between two looks at it.
    """

    pause_s: float = 0.0

    @abstractmethod
    def open(self, model: RememberingModel) -> Catalog:
        """Return its present state; raise OpenVSEError where it cannot be served with the model."""

    @abstractmethod
    def state(self, catalog: Catalog | None) -> object:
        """Return what changes whenever it does.

        Args:
            catalog: what was opened last; None before that.
        """


@dataclass(frozen=True)
class IndexSource(Source):
    """The folder of an index.

    Attributes:
        path: the folder.
        engine: the engine that is wanted: ``exact``, or None for that of the index.
        engine_url: of the engine's server, with its secrets; None takes what the index and the environment say.
    """

    path: Path
    engine: str | None = None
    engine_url: str | None = None

    def open(self, model: RememberingModel) -> Catalog:
        """Open the index."""
        index = Index.open(self.path, model.fingerprint)
        return IndexCatalog(index, model, engine=self.engine, engine_url=self.engine_url)

    def state(self, catalog: Catalog | None) -> object:
        """Return identities, times and sizes of the files that every change of an index touches."""
        manifest = read_manifest(self.path)
        stats = [(self.path / name).stat() for name in (MANIFEST, manifest.items)]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in stats)


@dataclass(frozen=True)
class EngineSource(Source):
    """An engine by its URL or its folder; it answers with what it holds at that moment, whether or not it is reopened.

    Attributes:
        address: the engine and its place.
        images: where the first of the indexed folders is on this machine; None leaves it where it was.
    """

    address: EngineAddress
    images: Path | None = None
    pause_s: float = _ASK_AGAIN_S

    def open(self, model: RememberingModel) -> Catalog:
        """Connect to the engine."""
        return EngineCatalog(self.address, model, images=self.images)

    def state(self, catalog: Catalog | None) -> object:
        """Count the items once more; an engine needs no opening for what it holds."""
        if isinstance(catalog, EngineCatalog):
            catalog.recount()
        return None
