"""The command line's frame: the application, plug-ins, and errors in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from openvse import __version__
from openvse.errors import OpenVSEError

app = typer.Typer(
    name="openvse",
    help="Visual-semantic embedding: train, evaluate and search models in which pictures and sentences meet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"openvse {__version__}")
        raise typer.Exit


@app.callback()
def options(
    plugin: Annotated[
        list[Path] | None, typer.Option(help="Python file that registers parts of your own; repeatable.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Take what holds for every command."""
    for path in plugin or []:
        load_plugin(path)


def load_plugin(path: Path) -> None:
    """Run a Python file of the user's own, which registers parts."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise OpenVSEError(f"plug-in {path} is no Python file: give a .py file that registers parts")
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)


def main() -> None:
    """Run the command line; the user's errors end with one line and exit code 2."""
    import openvse.cli.commands  # noqa: F401 - registers the commands

    try:
        app()
    except OpenVSEError as error:
        typer.echo(f"openvse: error: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("openvse: interrupted; what was finished is on disk", err=True)
        sys.exit(130)
