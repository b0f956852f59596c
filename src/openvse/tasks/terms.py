"""The terms of the papers by name, which ``terms.yaml`` lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pydantic import TypeAdapter

from openvse.specs.load import parse_yaml


@dataclass(frozen=True)
class PaperTerm:
    """A term of a paper, its defining papers, the parts that implement it, and recipe settings or commands."""

    name: str
    source: str
    parts: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()


@cache
def paper_terms() -> Mapping[str, tuple[PaperTerm, ...]]:
    """Return the terms by subject, in the order of the documentation."""
    listed = parse_yaml(files("openvse.tasks").joinpath("terms.yaml").read_text(encoding="utf-8"))
    return TypeAdapter(dict[str, tuple[PaperTerm, ...]]).validate_python(listed)
