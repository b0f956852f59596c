"""What an engine holds, as it is served without the index that filled it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from openvse.errors import DataError, IndexFormatError
from openvse.media.names import escaped
from openvse.search.store_engine import StoreEngine
from openvse.serving.batching import RememberingModel
from openvse.serving.catalog import About, Catalog, MissingError, fields_of
from openvse.stores.engine_address import EngineAddress
from openvse.stores.points import Facts

_FIELDS_FROM = 500


class EngineCatalog(Catalog):
    """The items of an engine by number; what is known of them is asked when it is needed.

    Args:
        address: the engine and its place.
        model: the model that made the embeddings.
        images: where the first of the indexed folders is on this machine; None leaves it where it was.

    Raises:
        EngineError: the engine cannot be reached, or its place does not say which model made it.
        IndexFormatError: another model made it, or it holds sentences.
    """

    def __init__(
        self, address: EngineAddress, model: RememberingModel, *, images: Path | None = None
    ) -> None:
        opened = StoreEngine(model, address, kind=model.kind, images=images)
        note = opened.note
        super().__init__(model, [root.path for root in note.roots])
        self.engine: StoreEngine = opened
        try:
            if note.holds != "images":
                raise IndexFormatError(
                    f"{address.name} holds sentences, and a server shows images: give an engine of images"
                )
            self._count = len(opened)
            self.fields = fields_of(_values(opened.ask(lambda store: store.some(_FIELDS_FROM))))
        except BaseException:
            opened.close()
            raise
        roots = tuple(root.path for root in note.roots)
        self.about = About(note.created, note.embeddings, note.dim, roots, engine=address.name)

    def __len__(self) -> int:
        return self._count

    def recount(self) -> None:
        """Ask how many items there are now."""
        self._count = len(self.engine)

    def key(self, item_id: str) -> int:
        """Return the number of an item; raise MissingError where the engine does not hold it."""
        try:
            return self.engine.key_of(item_id)
        except DataError as error:
            raise MissingError(
                f"the engine holds no item {escaped(item_id)}: give the path below the folder"
            ) from error

    def facts(self, key: int) -> Facts:
        """Return what is known of an item."""
        found = self.engine.facts_of(key)
        if found is None:
            raise MissingError(f"the engine holds no item {key}: it may have been removed since")
        return found

    def id_of(self, key: int) -> str:
        """Return the id of an item."""
        return self.facts(key).path

    def stamp(self, key: int) -> tuple[int, int]:
        """Return time and size of the file of an item."""
        facts = self.facts(key)
        return facts.modified_ns, facts.size

    def path_of(self, key: int) -> Path:
        """Return where the file of an item was when it was indexed, or where its folder is now."""
        return self.engine.note.file_of(self.id_of(key))


def _values(some: list[Facts]) -> list[tuple[str, str]]:
    """Return keys and values of the metadata of some items, the most frequent first."""
    counted = Counter(
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for each in some
        for name, value in each.metadata.items()
        if isinstance(value, str | int | float)
    )
    return [pair for pair, _ in counted.most_common()]
