"""The commands of the command line, however deep their groups are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from openvse.cli.program import app


def leaf_commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command with the words that name it."""
    for name, each in (group or get_command(app)).commands.items():
        if hasattr(each, "commands"):
            yield from leaf_commands(each, f"{before}{name} ")
        else:
            yield f"{before}{name}", each
