"""Settings that are declared once, as fields of a class: the command line, REST, MCP and the reference read them there.

A field has a name, a type and a default, its sentence is in the docstring of the class, and a ``Declared`` in its
annotation says what else holds: ``top_k: Annotated[int, Declared(1, panel="Which hits")] = 10``.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, ForwardRef, Union, get_args, get_origin

from openvse.errors import DataError, check_number
from openvse.files import several

FIRST = "Options"
"""The panel that the help shows first."""


@dataclass(frozen=True)
class Declared:
    """What holds for a setting, whoever gives it.

    Attributes:
        above: whether the least number itself is excluded.
        zero: what 0 means, where it is allowed beside the range.
        panel: the panel of the help for its option, "" if the command chooses one, None without an option.
        metavar: the word for its value in the help.
        words: its options, the first of which stands in messages. Default: its name with dashes.
        name: the keyword of Python and the key of REST. This and what follows is read from the class.
        type: the type of its value, without None. ``Any`` for one that only Python can give.
        is_list: whether it has any number of texts.
    """

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    zero: str = ""
    panel: str | None = None
    metavar: str = ""
    words: tuple[str, ...] = ()
    envvar: str = ""
    name: str = ""
    about: str = ""
    type: Any = Any
    default: Any = None
    is_list: bool = False

    @property
    def option(self) -> str:
        """Its option, as messages of the command line name it."""
        return self.words[0] if self.words else f"--{self.name.replace('_', '-')}"

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds of the number, by their names in a JSON schema."""
        named = {"exclusiveMinimum" if self.above else "minimum": self.least, "maximum": self.most}
        return {name: bound for name, bound in named.items() if math.isfinite(bound)}

    def checked(self, given: Any, kinds: tuple[type, ...] = (str,)) -> Any:
        """Return a value, and any number of texts (``kinds``) as a tuple. Raise DataError if it is not allowed."""
        if given is None and self.default is None:
            return None
        if self.is_list:
            return tuple(several(given, self.name, kinds))
        if self.type in (int, float) and not (self.zero and given == 0 and not isinstance(given, bool)):
            also = f", or 0 for {self.zero}" if self.zero else ""
            whole = self.type is int
            check_number(self.name, given, self.least, self.most, whole=whole, above=self.above, also=also)
        allowed = (True, False) if self.type is bool else get_args(self.type)
        if allowed and given not in allowed:
            leave = ", or leave it out" if self.default is None else ""
            raise DataError(f"{self.name} is {given!r:.40}: give {' or '.join(map(str, allowed))}{leave}")
        return given


@cache
def settings_of(kind: Any) -> dict[str, Declared]:
    """Return the settings of a class by their names, none of another type."""
    if not is_dataclass(kind):
        return {}
    _, _, entries = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    entries = entries.partition("\n\n")[0].replace("``", "")
    said = dict(re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", entries, flags=re.M | re.S))
    known = vars(sys.modules[kind.__module__])
    return {
        each.name: replace(
            _declared(str(each.type), known),
            name=each.name,
            about=re.sub(r"\s+", " ", about[:1].upper() + about[1:]).strip(),
            default=each.default,
        )
        for each in fields(kind)
        for about in [said.get(each.name, "")]
    }


def _declared(annotation: str, known: dict[str, Any]) -> Declared:
    """Return what an annotation says of a setting. A type in quotation marks is known to type checkers alone."""
    kind, said = eval(annotation, dict(known)), Declared()
    if get_origin(kind) is Annotated:
        kind, said = get_args(kind)
    if isinstance(kind, ForwardRef):
        return replace(said, is_list=kind.__forward_arg__.startswith("Sequence["))
    if get_origin(kind) in (Union, UnionType):
        kind, *_ = (each for each in get_args(kind) if each is not type(None))
    is_list = get_origin(kind) in (Sequence, tuple)
    return replace(said, type=str if is_list else kind, is_list=is_list)


def check_settings(given: Any, kinds: tuple[type, ...] = (str,)) -> None:
    """Check the settings of an instance of a class, in which any number of texts (``kinds``) becomes a tuple."""
    for name, each in settings_of(given.__class__).items():
        object.__setattr__(given, name, each.checked(getattr(given, name), kinds))
