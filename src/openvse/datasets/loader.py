"""The contract of a loader, and data sets by name: what opens each, and what is known of its published copy."""

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
    """What opens a data set; a plain function is one."""

    def __call__(self, root: Path, /, *, require_images: bool) -> OpenedT_co:
        """Return the data that lie at a place.

        Args:
            root: the folder or file of the data set.
            require_images: leave out images whose file is not there; False when stored features stand in for them.

        Raises:
            DataError: the data are not there, or not usable.
        """
        ...


Registration: TypeAlias = tuple[Loader[OpenedT], Facts | None]
"""What opens a data set, and the facts of its published copy where there are any."""


class DataSets(Registry[OpenedT]):
    """Data sets by name: the loader of each, and the facts of those that are published.

    Adding a data set of your own takes one line in your own file: ``DATASETS.add("mine", open_mine)``. With
    ``facts=MINE``, ``openvse data`` describes and checks it like the built-in ones.

    Args:
        kind: what the data sets are called in messages.
        known: the built-in data sets by name.

    Raises:
        RecipeError: the facts bear another name than the data set.
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
            name: as users write it in ``NAME:ROOT``.
            part: its loader; see ``Loader``.
            facts: what is known of its published copy.

        Raises:
            RecipeError: another data set has the name, or the facts bear another one.
        """
        if facts is not None and facts.name != name:
            raise RecipeError(
                f"{self.kind} {name!r} comes with the facts of {facts.name!r}: give both one name"
            )
        super().add(name, part)
        if facts is not None:
            self.facts[name] = facts

    def get(self, name: str) -> Loader[OpenedT]:
        """Return the loader of a data set; raise RecipeError naming the allowed ones."""
        return super().get(name)
