"""The one JSON document that a command prints with ``--json``; docs/json.md describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import typer

from openvse import __version__
from openvse.cli.progress import voice

SCHEMA = 1
"""Version of the document. New keys may join it; it grows by one where a key changes its meaning or goes."""


def print_json(command: str, result: Mapping[str, object]) -> None:
    """Print a result with what the command has warned of.

    Args:
        command: its name, such as "search" or "data check".
        result: what JSON can hold, numbers finite.
    """
    document = {
        "schema": SCHEMA,
        "openvse": __version__,
        "command": command,
        "warnings": voice.warnings,
        "result": result,
    }
    # Pure ASCII passes every terminal and pipe, names of files that are no UTF-8 included.
    typer.echo(json.dumps(document, indent=2, allow_nan=False))
