"""The section of a report with the best and the worst queries, and what was found instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from html import escape

from openvse.evaluation.findings import AnsweredQueries, AnsweredQuery
from openvse.evaluation.win_loss import Shown
from openvse.media.packed import ImageFile
from openvse.output.thumbnails import thumbnail
from openvse.report.measure import MeasuredReport

SIDE_PX = 176
"""The longer side of an image on the page; small, because a page holds many."""

_Small = Callable[[ImageFile], str | None]


def query_sections(reports: Sequence[MeasuredReport]) -> list[str]:
    """Return a section for each run that has queries to show; only the first one is open."""
    small: _Small = cache(lambda image: thumbnail(image, side=SIDE_PX))
    return [*_sections(reports, small)]


def _sections(reports: Sequence[MeasuredReport], small: _Small) -> Iterator[str]:
    first = True
    for each in reports:
        if each.findings is None or not any(some.best or some.worst for some in each.findings.queries):
            continue
        inside = "\n".join(_direction(some, small) for some in each.findings.queries)
        owner = f" of {escape(each.run.name)}" if len(reports) > 1 else ""
        yield (
            f"<section>\n<details{' open' if first else ''}><summary><h2>Best and worst queries{owner}</h2></summary>\n"
            f"{inside}\n</details>\n</section>"
        )
        first = False


def _direction(some: AnsweredQueries, small: _Small) -> str:
    parts = [f"<h3>{escape(some.title)}</h3>"]
    for title, queries in (("Best", some.best), ("Worst", some.worst)):
        cards = "\n".join(f"<li>{_card(query, small)}</li>" for query in queries)
        listed = f'<ol class="queries">\n{cards}\n</ol>' if queries else "<p>None.</p>"
        parts.append(f"<h4>{title}</h4>\n{listed}")
    return "\n".join(parts)


def _card(query: AnsweredQuery, small: _Small) -> str:
    answers = [*zip(query.found, query.hits, strict=True)]
    result = f'<span class="result">{escape(query.result)}</span>'
    if any(shown.image is not None for shown, _ in answers):
        frames = [_frame(shown, small, hit=hit) for shown, hit in answers]
        if query.right is not None:
            frames.append(_frame(query.right, small, label="right"))
        return f'<p class="asked">{escape(query.query.text)} {result}</p><div class="frames">{"".join(frames)}</div>'
    listed = "ol" if len(answers) > 1 else "ul"
    texts = "".join(
        f"<li{' class=hit' if hit else ''}>{_marked(shown.text, hit)}</li>" for shown, hit in answers
    )
    right = (
        f'<p class="right"><b>right:</b> {escape(query.right.text)}</p>' if query.right is not None else ""
    )
    asked = f'<p class="asked">{escape(query.query.text)} {result}</p>'
    return f'<div class="pair">{_frame(query.query, small)}<div>{asked}<{listed}>{texts}</{listed}>{right}</div></div>'


def _marked(text: str, hit: bool) -> str:
    return f"{escape(text)}{' ' + chr(0x2713) if hit else ''}"


def _frame(shown: Shown, small: _Small, *, hit: bool = False, label: str = "") -> str:
    uri = None if shown.image is None else small(shown.image)
    about = escape(shown.text, quote=True)
    inside = f'<img src="{uri}" alt="{about}">' if uri else f"<span>{about}: no image</span>"
    mark = "\N{CHECK MARK}" if hit else escape(label)
    caption = f"<figcaption>{mark}</figcaption>" if mark else ""
    return f'<figure class="frame{" hit" if hit else ""}" title="{about}">{inside}{caption}</figure>'
