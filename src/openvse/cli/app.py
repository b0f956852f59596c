"""The command line's frame: the application, plug-ins, and errors in one line."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from openvse import __version__
from openvse.cli.allocator import keep_freed_memory
from openvse.errors import OpenVSEError


class Commands(TyperGroup):
    """Ends a command that the user's input stops with one line on standard error, and no traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; the input's faults end with code 2, an interrupt with 130."""
        from openvse.cli.progress import Warnings, voice

        logger, warnings = logging.getLogger("openvse"), Warnings()
        logger.addHandler(warnings)
        try:
            return super().invoke(ctx)
        except OpenVSEError as error:
            message, code = f"error: {error}", 2
        except KeyboardInterrupt:
            message, code = "interrupted; what was finished is on disk", 130
        except OSError as error:
            if error.filename is None:  # not about a file that the user named
                raise
            message, code = f"error: {error.filename}: {error.strerror}: choose another path", 2
        finally:
            logger.removeHandler(warnings)
            voice.reset()
        typer.echo(f"openvse: {' '.join(message.split())}", err=True)
        raise typer.Exit(code)


app = typer.Typer(
    name="openvse",
    cls=Commands,
    help="Visual-semantic embedding: train, evaluate and search models in which images and sentences meet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"openvse {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    plugin: Annotated[
        list[Path] | None,
        typer.Option(help="A Python file that registers parts of your own; may be given several times."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Set up what every command needs, and run the plug-ins."""
    keep_freed_memory()
    for path in plugin or []:
        load_plugin(path)


def load_plugin(path: Path) -> None:
    """Run a Python file of the user's own, which registers parts.

    Raises:
        OpenVSEError: there is no such file, or it fails; the line where it does is named.
    """
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise OpenVSEError(f"plug-in {path} is no Python file: give a .py file that registers parts")
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever somebody else's file does
        raise OpenVSEError(
            f"plug-in {path} fails: {type(error).__name__}: {error}; correct the file"
        ) from error


def main() -> None:
    """Run the command line."""
    import openvse.cli.commands  # noqa: F401 - registers the commands

    app()
