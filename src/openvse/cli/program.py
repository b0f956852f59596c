"""The ``openvse`` command, with the commands of this installation."""

from __future__ import annotations

import openvse.cli.commands  # noqa: F401 - registers the commands of the search half
from openvse.cli.app import MISSING, app
from openvse.halves import missing_package, refusal_of, training_module

__all__ = ["TRAINING_COMMANDS", "app"]

TRAINING_COMMANDS = (
    *("analyze", "ask", "blend", "compare", "convert", "data", "demo"),
    *("encode", "evaluate", "export", "extract", "list", "sweep", "train"),
)
"""The commands of the training half. Installations without it name them in the help."""


def _refuse(name: str) -> None:
    """Register a command that explains how to install it."""

    def refused() -> None:
        raise refusal_of(f"openvse {name}")

    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command(name, rich_help_panel=MISSING, context_settings=settings, add_help_option=False)(refused)


if missing_package():
    for each in TRAINING_COMMANDS:
        _refuse(each)
else:
    training_module("openvse.train_cli.commands")
