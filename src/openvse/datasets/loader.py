"""The contract of a loader, and data sets by name, with their loaders and the facts of their published copies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

from openvse.corpus.corpus import Corpus
from openvse.corpus.facts import Facts
from openvse.corpus.questions import QuestionSet
from openvse.errors import RecipeError
from openvse.registry import Registry

OpenedT = TypeVar("OpenedT", bound=Corpus | QuestionSet)
OpenedT_co = TypeVar("OpenedT_co", bound=Corpus | QuestionSet, covariant=True)


@runtime_checkable
class Loader(Protocol[OpenedT_co]):
    """A function that opens a data set."""

    def __call__(self, root: Path, /, *, require_images: bool) -> OpenedT_co:
        """Return the data at a place.

        Args:
            root: the folder or file of the data set.
            require_images: whether to leave out images without a file; False if stored features replace the files.

        Raises:
            DataError: the data are missing or cannot be used.
        """
        ...


Registration: TypeAlias = tuple[Loader[OpenedT], Facts | None]
"""The loader of a data set, and the facts of its published copy if there are any."""


class DataSets(Registry[OpenedT]):
    """Data sets by name: the loader of each, and the facts of published ones.

    To add your own data set, put one line in your own file: ``DATASETS.add("mine", open_mine)``. With ``facts=MINE``,
    ``openvse data`` describes and checks it like the built-in ones.

    Args:
        kind: the name of the kind of data sets in messages.
        known: the built-in data sets by name.

    Raises:
        RecipeError: the name in the facts is not that of the data set.
    """

    listed_by: ClassVar[str] = "openvse data"

    def __init__(self, kind: str, known: Mapping[str, Registration[OpenedT]]) -> None:
        super().__init__(kind, {})
        self.facts: dict[str, Facts] = {}
        for name, (loader, facts) in known.items():
            self.add(name, loader, facts=facts)

    def add(self, name: str, part: Loader[OpenedT], *, facts: Facts | None = None) -> None:
        """Register a data set.

        Args:
            name: the name that users write in ``NAME:ROOT``.
            part: the loader; see ``Loader``.
            facts: the facts of the published copy.

        Raises:
            RecipeError: another data set has this name, or the facts have a different name.
        """
        if facts is not None and facts.name != name:
            raise RecipeError(
                f"{self.kind} {name!r} comes with the facts of {facts.name!r}: give both one name"
            )
        super().add(name, part)
        if facts is not None:
            self.facts[name] = facts

    def get(self, name: str) -> Loader[OpenedT]:
        """Return the loader of a data set; raise RecipeError, which lists the allowed names, if there is none."""
        return super().get(name)
