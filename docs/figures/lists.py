"""A hook of MkDocs: lists that repeat the code are written into the pages where ``<!-- list: NAME -->`` stands."""

from __future__ import annotations

import re

import library
import recipe_keys
import rest

from openvse.train_cli.listing import paper_terms

MARK = re.compile(r"^<!-- list: (.+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: object, config: object, files: object) -> str:
    """Return a page with its lists. MkDocs calls it."""
    return MARK.sub(lambda found: LISTS[found[1]](), markdown)


def terms() -> str:
    """Return the terms of the papers: a heading and a table for each subject."""
    sections = []
    for subject, own in paper_terms().items():
        rows = [f"## {subject}\n", "| term | parts | in a recipe, or as a command | source |", "|---|---|---|---|"]
        for term in own:
            parts = ", ".join(f"{kind} `{name}`" for kind, _, name in (p.rpartition(" ") for p in term.parts))
            usage = "<br>".join(f"`{each}`" for each in term.usage)
            rows.append(f"| {term.name} | {parts} | {usage} | {term.source} |")
        sections.append("\n".join(rows))
    return "\n\n".join(sections)


LISTS = {
    "names": library.names,
    "keys of a recipe": recipe_keys.keys,
    "terms": terms,
    "addresses": rest.addresses,
    "fields of a request": rest.request,
    "fields of a reply": rest.reply,
    "fields of a hit": rest.hit,
}
