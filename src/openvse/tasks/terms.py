"""The terms of the papers by name, which ``terms.yaml`` lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from textwrap import wrap

import yaml


@dataclass(frozen=True)
class PaperTerm:
    """A term of a paper, where papers define it, the parts that implement it, and recipe settings or commands."""

    name: str
    source: str
    parts: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()


@cache
def paper_terms() -> Mapping[str, tuple[PaperTerm, ...]]:
    """Return the terms by subject, in the order of the documentation."""
    listed = yaml.safe_load(files("openvse.tasks").joinpath("terms.yaml").read_text(encoding="utf-8"))
    return {
        subject: tuple(
            PaperTerm(
                each["name"], each["source"], tuple(each.get("parts", ())), tuple(each.get("usage", ()))
            )
            for each in terms
        )
        for subject, terms in listed.items()
    }


def terms_as_text(width: int = 80) -> str:
    """Return the terms for a terminal of a given width, each with its source, parts and usage."""
    lines: list[str] = []
    for subject, terms in paper_terms().items():
        lines += [subject.upper(), ""]
        for term in terms:
            lines += _folded(f"{term.name} [{term.source}]", width)
            lines += _folded(", ".join(term.parts), width, indent=2)
            for each in term.usage:
                lines += _folded(each, width, indent=2, further=6)
            lines.append("")
    return "\n".join(lines).rstrip()


def _folded(text: str, width: int, indent: int = 0, further: int | None = None) -> list[str]:
    """Break a text into lines at spaces; lines after the first are indented by ``further``."""
    rest = " " * (indent if further is None else further)
    return wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )
