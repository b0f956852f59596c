"""Images of different splits that look alike."""

from __future__ import annotations

from functools import partial
from html import escape
from importlib.resources import files

from openvse.analysis.result import Analysis, Table
from openvse.corpus import Corpus
from openvse.corpus.splits import SPLITS
from openvse.datasets.near_duplicates import alike_pairs, see_images
from openvse.errors import DataError
from openvse.output.documents import html_page
from openvse.output.thumbnails import thumbnail
from openvse.types import OnProgress

NAME = "duplicates"
_SHOWN = 200


def analyze_duplicates(corpus: Corpus, progress: OnProgress | None = None) -> Analysis:
    """Find images that look alike and are in different splits, by a perceptual hash; no model is needed.

    Args:
        corpus: the data with their splits.
        progress: is called after every image.

    Raises:
        DataError: the data have fewer than two splits.
    """
    splits = corpus.split_labels()
    present = [name for name in SPLITS if name in splits]
    if len(present) < 2:
        raise DataError(f"{corpus.name} has one split, so nothing can be in two of them: name other data")
    # An image that cannot be read leaks nothing; 'data check' lists it.
    done = partial(progress, "comparing images") if progress else None
    pairs = alike_pairs(see_images(corpus.image_paths, done, middle=True), same_too=True)
    across = [
        (one, other) for one, other in pairs if splits[one] and splits[other] and splits[one] != splits[other]
    ]
    across = [tuple(sorted(pair, key=lambda at: SPLITS.index(splits[at]))) for pair in across]  # type: ignore[misc]
    counts = [
        (first, second, sum((splits[a], splits[b]) == (first, second) for a, b in across))
        for at, first in enumerate(present)
        for second in present[at + 1 :]
    ]
    rows = [(splits[a], corpus.image_ids[a], splits[b], corpus.image_ids[b]) for a, b in across]
    return Analysis(
        NAME,
        Table(("split", "other split", "pairs that look alike"), counts),
        {"": Table(("split", "image", "other split", "other image"), rows)},
        pages={"": _page(corpus, splits, across)},
    )


def _page(corpus: Corpus, splits: tuple[str, ...], pairs: list[tuple[int, int]]) -> str:
    style = files("openvse.analysis").joinpath("suspicious.css").read_text(encoding="utf-8")
    cards = "\n".join(
        '<li><div class="pair">' + "".join(_figure(corpus, splits[at], at) for at in pair) + "</div></li>"
        for pair in pairs[:_SHOWN]
    )
    body = (
        f'<ol class="list">\n{cards}\n</ol>'
        if pairs
        else "<p>No two images of different splits look alike.</p>"
    )
    note = f"{len(pairs)} pairs; all of them are in {NAME}.csv"
    return html_page(
        f"Images that look alike in different splits: {corpus.name}", body, note=note, style=style
    )


def _figure(corpus: Corpus, split: str, at: int) -> str:
    name, small = escape(corpus.image_ids[at]), thumbnail(corpus.image_paths[at])
    shown = f'<img src="{small}" alt="{name}" loading="lazy">' if small else "<p>(cannot be read)</p>"
    return f"<figure>{shown}<figcaption>{split}<br>{name}</figcaption></figure>"
