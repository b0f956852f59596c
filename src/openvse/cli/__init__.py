"""The command line: its frame, and the commands that index, search and serve."""


def main() -> None:
    """Run ``openvse``."""
    from openvse.cli.app import app

    app()
