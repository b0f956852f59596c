"""The commands of the command line, however deep their groups are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from openvse.cli.app import app, command_names, import_command


def whole_program() -> Any:
    """Return the group of all commands."""
    for name in command_names():
        import_command(name)
    return get_command(app)


def leaf_commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command with the words that name it."""
    for name, each in (group or whole_program()).commands.items():
        if hasattr(each, "commands"):
            yield from leaf_commands(each, f"{before}{name} ")
        else:
            yield f"{before}{name}", each
