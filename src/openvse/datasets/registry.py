"""The data sets by name: the contract of a loader, and the registry. A new one takes a file and one line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from openvse.corpus.corpus import Corpus
from openvse.corpus.facts import Facts
from openvse.datasets.folder import open_folder
from openvse.datasets.hf import open_hf
from openvse.datasets.openmoji import open_openmoji
from openvse.datasets.parquet import open_parquet
from openvse.datasets.sidecars import open_sidecars
from openvse.datasets.table import open_table
from openvse.datasets.webdataset import open_webdataset
from openvse.errors import RecipeError
from openvse.registry import Registry


@runtime_checkable
class OtherData(Protocol):
    """Data of another task than retrieval, such as questions about images, of which each sentence is about an image."""

    @property
    def image_ids(self) -> Sequence[str]:
        """The identifiers of the images."""
        ...

    @property
    def image_paths(self) -> Sequence[Path]:
        """The files of the images."""
        ...

    def as_corpus(self) -> Corpus:
        """Return the images with their sentences as captions, so that features can be made and a copy checked."""
        ...


@runtime_checkable
class Loader(Protocol):
    """A function that opens a data set."""

    def __call__(self, root: Path, /, *, require_images: bool) -> Corpus | OtherData:
        """Return the data at a place: images or clips with captions, or data of another task.

        Args:
            root: the folder or file of the data set.
            require_images: whether to leave out images without a file. False if stored features replace the files.

        Raises:
            DataError: the data are missing or cannot be used.
        """
        ...


@dataclass(frozen=True)
class DataSet:
    """A data set with what is known of it before it is opened. A call opens it.

    Attributes:
        facts: the facts of the published copy, of the same name.
        own: whether it is a form of users' own data, whose files may name any image path.
    """

    opens: Loader
    facts: Facts | None = None
    own: bool = False

    def __call__(self, root: Path, /, *, require_images: bool) -> Corpus | OtherData:
        """Open the data set. See ``Loader``."""
        return self.opens(root, require_images=require_images)


class DataSets(Registry[Corpus | OtherData]):
    """Data sets by name: the loader of each, and the facts of published ones.

    To add your own data set, put one line in your own file: ``DATASETS.add("mine", open_mine)``. With ``facts=MINE``,
    ``openvse list data`` and ``openvse data check`` describe and check it like the published ones. An installed package
    adds a ``DataSet``, or only a loader.
    """

    listed_by: ClassVar[str] = "openvse list data"

    def add(self, name: str, part: Loader, *, facts: Facts | None = None) -> None:
        """Register a loader under a name, with the facts of the published copy, which have the same name."""
        if facts is not None and facts.name != name:
            raise RecipeError(
                f"{self.kind} {name!r} comes with the facts of {facts.name!r}: give both one name"
            )
        super().add(name, part if facts is None else DataSet(part, facts))

    def loader(self, name: str) -> Loader:
        """Return the function that opens a data set. RecipeError names the known ones if it is none."""
        part = self.get(name)
        return part.opens if isinstance(part, DataSet) else part

    def facts(self, name: str) -> Facts | None:
        """Return the facts of a published data set, or None for another name."""
        facts: Facts | None = getattr(self.get(name), "facts", None) if name in self else None
        return facts

    def is_own(self, name: str) -> bool:
        """Return whether a name is a form of users' own data, whose files may name any image path."""
        return bool(getattr(self.get(name), "own", False))


def _own(loader: Loader) -> DataSet:
    return DataSet(loader, own=True)


_BUILT_IN: Mapping[str, Any] = {
    "hf": _own(open_hf),
    "folder": _own(open_folder),
    "openmoji": open_openmoji,
    "parquet": _own(open_parquet),
    "sidecars": _own(open_sidecars),
    "table": _own(open_table),
    "webdataset": _own(open_webdataset),
}

DATASETS = DataSets("data set", _BUILT_IN)
"""All data sets: the forms of users' own data, and published ones, which packages add."""


def parse_source(source: str | Path) -> tuple[str, Path]:
    """Split ``NAME:ROOT``, with "" as the name if the source is a path.

    A path may hold a colon: a word before it that is no registered name counts as a name only if no such path exists.
    """
    name, colon, root = str(source).partition(":")
    if colon and (name in DATASETS or (name.isidentifier() and len(name) > 1 and not Path(source).exists())):
        return name, Path(root).expanduser()
    return "", Path(source).expanduser()
