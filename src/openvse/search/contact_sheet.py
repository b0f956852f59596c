"""Search results as one web page that holds its images itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from openvse.errors import OpenVSEError
from openvse.media.videos import read_poster
from openvse.output.documents import html_page, image_uri
from openvse.search.engine import Hit

THUMBNAIL_PX = 360
"""Longer side of a thumbnail: twice its size on the page, for dense screens."""


def contact_sheet(
    results: Mapping[str, Sequence[Hit]],
    title: str = "Search results",
    *,
    note: str = "",
    badges: Mapping[str, str] | None = None,
    correct: Mapping[str, Collection[str]] | None = None,
) -> str:
    """Return an HTML page with a row of thumbnails for every query; it needs no other file and no network.

    Args:
        results: the hits of each query, best first.
        title: heading of the page.
        note: a sentence under the heading, for instance what was searched.
        badges: by ``Hit.id``, a short label on its image (such as "held out").
        correct: by query, the ids of the right answers, which are marked.
    """
    right = correct or {}
    thumbnail = cache(_thumbnail)  # an image that answers several queries is read once
    sections = [
        _section(query, hits, badges or {}, right.get(query, ()), thumbnail)
        for query, hits in results.items()
    ]
    style = files("openvse.search").joinpath("contact_sheet.css").read_text(encoding="utf-8")
    return html_page(title, "\n".join(sections), note=note, style=style)


def _section(
    query: str,
    hits: Sequence[Hit],
    badges: Mapping[str, str],
    right: Collection[str],
    thumbnail: Callable[[Path], str | None],
) -> str:
    cards = "\n".join(
        _card(hit, badges.get(hit.id, ""), hit.id in right, thumbnail(hit.path)) for hit in hits
    )
    answer = f"<ol>\n{cards}\n</ol>" if hits else "<p>No image was found.</p>"
    return f"<section>\n<h2>{escape(query)}</h2>\n{answer}\n</section>"


def _card(hit: Hit, badge: str, is_right: bool, image: str | None) -> str:
    name = escape(hit.id)
    shown = (
        f'<img src="{image}" alt="{name}" loading="lazy">'
        if image
        else f'<span class="missing" role="img" aria-label="{name}">image not readable</span>'
    )
    label = f'<span class="badge">{escape(badge)}</span>' if badge else ""
    right = ' <span class="mark">\N{CHECK MARK} right</span>' if is_right else ""
    return (
        f'<li{" class=right" if is_right else ""}><figure><div class="image">{shown}{label}</div>'
        f'<figcaption><span class="rank">{hit.rank}{right}</span> <span class="score">{hit.score:.3f}</span> '
        f'<span class="name" title="{name}">{name}</span></figcaption></figure></li>'
    )


def _thumbnail(path: Path) -> str | None:
    """Return an image, or a frame from the middle of a clip, as a small data URI; None when it cannot be read."""
    try:
        image = read_poster(path)
    except OpenVSEError:  # also where this machine reads no videos: the hits stand beside their scores
        return None
    image.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
    return image_uri(image, quality=80)
