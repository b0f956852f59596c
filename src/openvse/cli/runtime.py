"""The command line of the runtime distribution: ``search``, ``index`` and ``serve`` with exported models.

The distribution leaves ``openvse/cli/commands/__init__.py`` out, which names the commands of the whole package.
"""

from __future__ import annotations

from openvse.cli.app import app


def main() -> None:
    """Run the command line."""
    import openvse.cli.commands.indexing
    import openvse.cli.commands.search
    import openvse.cli.commands.serve  # noqa: F401 - registers the command

    app()
