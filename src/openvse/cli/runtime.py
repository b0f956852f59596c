"""The command line of the runtime distribution: ``search`` and ``index`` with exported models, without PyTorch.

The distribution leaves ``openvse/cli/commands/__init__.py`` out, which names the commands of the whole package.
"""

from __future__ import annotations

from openvse.cli.app import app


def main() -> None:
    """Run the command line."""
    import openvse.cli.commands.indexing
    import openvse.cli.commands.search  # noqa: F401 - registers the command

    app()
