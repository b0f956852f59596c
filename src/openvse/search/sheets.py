"""Search results as one web page, which contains its images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from openvse.errors import MissingItemError, OpenVSEError
from openvse.media.segments import ClipSegment, clock, file_of
from openvse.media.text_reading import shown_lines
from openvse.output.documents import html_page, percent
from openvse.output.thumbnails import thumbnail_uri
from openvse.search.hits import Hit
from openvse.search.provided import CAPTIONS

TAIL_CHARACTERS = 12
"""The number of characters at the end of a name that are always shown."""


def contact_sheet(
    results: Mapping[str, Sequence[Hit]],
    title: str = "Search results",
    *,
    note: str = "",
    badges: Mapping[str, str] | None = None,
    captions: Mapping[str, Sequence[str]] | None = None,
    examples: Mapping[str, Path] | None = None,
) -> str:
    """Return an HTML page with a row of thumbnails for every query, which needs neither other files nor a network.

    Each card links to its image. If the image is gone or cannot be read, the card has a note.

    Args:
        results: the hits of each query, best first.
        note: a sentence under the heading, for instance on the searched folder.
        badges: short labels on the images, such as "held out", by ``Hit.id``.
        captions: sentences about the images, of which the first is shown, by ``Hit.id``.
        examples: the images that were used as queries, by query.
    """
    asked = examples or {}
    small = cache(thumbnail_uri)  # an image that answers several queries is read once
    sections = []
    for query, hits in results.items():
        cards = [
            _card(
                hit,
                badge=(badges or {}).get(hit.id, ""),
                caption=next(iter((captions or {}).get(hit.id, ())), hit.title),
                small=small,
            )
            for hit in hits
        ]
        image = small(asked[query]) if query in asked else None
        shown = f'<img class="asked" src="{image}" alt="">' if image else ""
        listed = "<ol>\n{}\n</ol>".format("\n".join(cards)) if cards else "<p>No image was found.</p>"
        sections.append(f"<section>\n<h2>{shown}{escape(query)}</h2>\n{listed}\n</section>")
    style = files("openvse.search").joinpath("contact_sheet.css").read_text(encoding="utf-8")
    return html_page(title, "\n".join(sections), note=note, style=style)


def _card(hit: Hit, *, badge: str, caption: str, small: Callable[[Path | ClipSegment], str | None]) -> str:
    name, source, image = escape(hit.id), None, None
    with suppress(MissingItemError):
        source = hit.source
        image = small(source)
    if image:
        about = escape(caption) or name
        shown = f'<img src="{image}" alt="{about}" loading="lazy">'
    else:
        reason = "cannot be read" if source and hit.path.exists() else "no longer there"
        shown = f'<span class="missing" role="img" aria-label="{name}">image {reason}</span>'
    span = "" if hit.start is None or hit.end is None else f"{clock(hit.start)} to {clock(hit.end)}"
    if source and hit.path.exists():
        there = f"#t={hit.start:g},{hit.end:g}" if span else ""  # where a browser begins to play
        shown = f'<a href="{escape(hit.path.resolve().as_uri() + there)}">{shown}</a>'
    label = f'<span class="badge">{escape(badge)}</span>' if badge else ""
    likely = (
        ""
        if hit.probability is None
        else f' <span class="fit" title="probability: {percent(hit.probability)}">{hit.fit}</span>'
    )
    text = f'<span class="caption">{escape(caption)}</span>' if caption else ""
    text += f'<span class="caption">text: {escape(shown_lines(hit.text))}</span>' if hit.text else ""
    text += f'<span class="caption">and {hit.alike} like it</span>' if hit.alike else ""
    time = f'<span class="span">{span}</span>' if span else ""
    return (
        f'<li><figure><div class="image">{shown}{label}</div>'
        f'<figcaption><span class="rank">{hit.rank}</span> '
        f'<span class="score">{hit.score:z.3f}{likely}</span> '
        f"{text}{_name(file_of(hit.id) if span else hit.id)}"
        f"{time}</figcaption></figure></li>"
    )


def _name(name: str) -> str:
    """Return a name whose middle is cut if it is too long. Its beginning and end distinguish files."""
    head, tail = name[:-TAIL_CHARACTERS], name[-TAIL_CHARACTERS:]
    return (
        f'<span class="name" title="{escape(name)}"><span class="head">{escape(head)}</span>'
        f'<span class="tail">{escape(tail)}</span></span>'
    )


def captions_beside(root: Path) -> Mapping[str, Sequence[str]]:
    """Return the captions of the images in a folder, by their path below it with forward slashes.

    There are none where it is no data set, or the whole disk, which an index of somebody else may name.
    """
    if root.resolve() == root.resolve().parent:
        return {}
    try:
        return CAPTIONS.get()(root)
    except (OpenVSEError, OSError):  # most folders only hold images
        return {}
