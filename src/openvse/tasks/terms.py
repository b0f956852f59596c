"""The terms of the papers by name, which ``terms.yaml`` lists, and ``_terms.yaml`` in the recipes of a package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from openvse.files import read_text
from openvse.specs.load import parse_yaml, recipe_folders


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
    listed: dict[str, tuple[PaperTerm, ...]] = {}
    for file in (Path(__file__).with_name("terms.yaml"), *(each / "_terms.yaml" for each in recipe_folders())):
        written = parse_yaml(read_text(file)) if file.is_file() else {}
        for subject, terms in TypeAdapter(dict[str, tuple[PaperTerm, ...]]).validate_python(written).items():
            listed[subject] = (*listed.get(subject, ()), *terms)
    return listed
