"""Documents for people to read: reports in Markdown along with their JSON, and web pages in a single file."""

from __future__ import annotations

import base64
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from openvse.files import made, write_whole

if TYPE_CHECKING:
    from PIL.Image import Image

CONFIDENCE = 0.95
"""The confidence level of the intervals that reports show."""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
{note}
</header>
<main>
{body}
</main>
</body>
</html>
"""


def percent(share: float) -> str:
    """Return a probability or a share in whole percent, with < or > if it rounds to 0 or 100 and is neither.

    Examples:
        >>> percent(0.257), percent(0.002), percent(0.999), percent(1.0)
        ('26 %', '<1 %', '>99 %', '100 %')
    """
    whole = round(100 * share)
    if whole == 0 and share > 0:
        return "<1 %"
    if whole == 100 and share < 1:
        return ">99 %"
    return f"{whole} %"


def write_report(folder: str | Path, name: str, *, markdown: str, json: str) -> Path:
    """Write ``NAME.md`` and ``NAME.json`` by rename, and return their folder. Raise DiskError if the disk refuses."""
    target = Path(folder)
    with made(target):
        write_whole(target / f"{name}.md", markdown)
        write_whole(target / f"{name}.json", json)
    return target


class Document(ABC):
    """A report for people and for programs: a dataclass, written as Markdown and as JSON.

    Fields that its ``repr`` leaves out are not written.
    """

    @property
    @abstractmethod
    def problems(self) -> tuple[str, ...]:
        """The omitted items, one line each."""

    @abstractmethod
    def sections(self) -> Iterable[str]:
        """Return the sections of the page in Markdown, without the problems."""

    def to_json(self) -> str:
        """Return the whole report as indented JSON."""
        itself = cast(Any, self)
        written = {name: value for name, value in asdict(itself).items() if itself.__dataclass_fields__[name].repr}
        return json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Return the report as a page in Markdown, with its problems at the end."""
        listed = "\n".join(f"- {problem}" for problem in self.problems)
        sections = [*self.sections(), *(["## Problems", listed] if listed else [])]
        return "\n\n".join(section for section in sections if section) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as nested mappings."""
        read: dict[str, Any] = json.loads(self.to_json())
        return read

    def __repr__(self) -> str:
        return self.to_markdown()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def save(self, folder: str | Path) -> Path:
        """Write ``report.json`` and ``report.md``, each by write-then-rename, and return the folder."""
        return write_report(folder, "report", markdown=self.to_markdown(), json=self.to_json())


def html_page(title: str, body: str, *, note: str = "", style: str = "") -> str:
    """Return an HTML page in the style of all pages of openvse, with a title and a note in plain text."""
    shared = files("openvse.output").joinpath("documents.css").read_text(encoding="utf-8")
    page = _PAGE.format(
        title=escape(title), style=shared + style, note=f"<p>{escape(note)}</p>" if note else "", body=body
    )
    # Pure ASCII survives whatever encoding the page is written and served with, odd file names included.
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def image_uri(image: Image, *, quality: int) -> str:
    """Return an image as a ``data:`` URI in WebP, with a quality of at most 100."""
    encoded = io.BytesIO()
    image.save(encoded, "WEBP", quality=quality)
    return f"data:image/webp;base64,{base64.b64encode(encoded.getvalue()).decode()}"
