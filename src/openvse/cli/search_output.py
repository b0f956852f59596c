"""Hits for other programs: lines of JSON, or paths."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.cli.queries import Query
    from openvse.search import Hit

_FEW = 20  # files that cannot be used and are named one by one

Form = Literal["table", "json", "jsonl", "paths"]


def chosen_output(output: Literal["table", "jsonl", "paths"] | None, *, as_json: bool, null: bool) -> Form:
    """Return the form of the output; raise OpenVSEError where two are asked for."""
    forms: set[Form] = {output} if output else set()
    forms |= {"json"} if as_json else set()
    forms |= {"paths"} if null else set()
    if len(forms) > 1:
        raise OpenVSEError("one output at a time: give one of --json, --output and --null")
    return forms.pop() if forms else "table"


def write_hits(asked: Sequence[Query], results: Sequence[Sequence[Hit]], form: Form, *, null: bool) -> None:
    """Print a line of JSON for each hit; or each path once, in the order of the queries and ranks."""
    if form == "paths":
        paths = dict.fromkeys(str(hit.path) for hits in results for hit in hits)
        write_paths([*paths], null=null)
        return
    for query, hits in zip(asked, results, strict=True):
        for hit in hits:
            about = {"query": query.text, "kind": query.kind, "rank": hit.rank, "score": hit.score}
            about |= {"probability": hit.probability}
            place = {"id": hit.id, "path": str(hit.path), "start": hit.start, "end": hit.end}
            typer.echo(json.dumps(about | place, allow_nan=False))


def warn_of_skipped(failed: Sequence[tuple[Path, str]]) -> None:
    """Warn of files that cannot be used: the first ones by name, and how many more there are."""
    from openvse.cli.progress import warn
    from openvse.media.names import escaped

    for path, reason in failed[:_FEW]:
        warn(f"skipped {escaped(path)}: {reason}")
    if len(failed) > _FEW:
        warn(f"skipped {len(failed) - _FEW:,} more files that cannot be used")


def write_paths(paths: Sequence[str], *, null: bool) -> None:
    """Print paths byte by byte as the system knows them, each with a line break or a zero byte behind it."""
    end = b"\0" if null else b"\n"
    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(os.fsencode(path) + end for path in paths))
    sys.stdout.buffer.flush()
