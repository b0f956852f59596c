"""The one JSON document that a command prints with ``--json``, which docs/json.md describes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import typer

from openvse import __version__
from openvse.cli.progress import voice
from openvse.files import whole_characters

SCHEMA = 1
"""Version of the document. It grows by one when a key changes its meaning or is removed, not when a key is added."""


def print_json(command: str, result: Mapping[str, object]) -> None:
    """Print the result of a command such as "data check" with its warnings. NaN and infinity are not written."""
    document = {
        "schema": SCHEMA,
        "openvse": __version__,
        "command": command,
        "warnings": voice.warnings,
        "result": result,
    }
    typer.echo(json_of(document, indent=2))


def json_of(content: Mapping[str, object], indent: int | None = None) -> str:
    """Return content as JSON in ASCII, without halves of characters, which names of files may hold."""
    whole = json.loads(whole_characters(json.dumps(content, allow_nan=False, ensure_ascii=False)))
    return json.dumps(whole, indent=indent)
