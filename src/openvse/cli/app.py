"""The frame of the command line: the application, plug-ins, errors in one line, and the reuse of freed memory."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from openvse import __version__
from openvse.cli.progress import describe_stop, stop_behind, stoppable
from openvse.errors import MissingHalfError, OpenVSEError, message_of
from openvse.files import NO_ROOM, refusal_of_disk
from openvse.halves import INSTALL, refusal_of, training_module
from openvse.registry import installed, load_part, load_plugin

PANELS = ("Train", "Search", "Explain", "Data", "Convert")
"""The groups of commands in the help, in its order. Each command names its own."""

MISSING = f"Not installed: {INSTALL}".replace("[", r"\[")  # brackets are markup of rich
"""The group of the commands of the training half, for installations without it."""

# The modules of the commands, which register them when they are imported, if these are called otherwise.
_MODULES = {"duplicates": "search", "index": "search", "compare": "evaluate", "encode": "evaluate"}
_MODULES |= {"blend": "convert", "demo": "train", "export": "convert", "list": "lists"}
_SEARCH = ("duplicates", "index", "search", "serve")
_TRAINING = ("blend", "compare", "convert", "data", "demo", "encode", "evaluate", "export", "extract", "list", "train")
_BUILT_IN = (*_SEARCH, *_TRAINING)
_GROUPS = ("data",)  # below which a package may add a command

_QUIET = ("--quiet", "-q")
_VERBOSE = "--verbose"
_PIXELS = "--max-pixels"
_VALUED = (_PIXELS, "--plugin")
_OUTSIDE = "--allow-outside"


def command_names() -> list[str]:
    """Return the names of all commands: the built-in ones, and those of installed packages."""
    return sorted({*_BUILT_IN, *(name.partition(".")[0] for name in installed("command"))})


def import_command(name: str) -> None:
    """Import the modules that register a command. A name without a command imports nothing.

    Installed packages add a command by an entry point ``command.NAME``, or ``command.GROUP.NAME`` below a group. It
    names the module that registers it.
    """
    module = _MODULES.get(name, name)
    try:
        if name in _SEARCH:
            import_module(f"openvse.cli.commands.{module}")
        elif name in _TRAINING:
            training_module(f"openvse.train_cli.commands.{module}")
        for whole, entry in installed("command").items() if name in _GROUPS or name not in _BUILT_IN else ():
            if whole.partition(".")[0] == name:
                load_part(entry)
    except MissingHalfError:
        _refuse(name)


def _refuse(name: str) -> None:
    """Register a command that says how to install what it needs."""

    def refused() -> None:
        raise refusal_of(f"openvse {name}")

    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command(name, rich_help_panel=MISSING, context_settings=settings, add_help_option=False)(refused)


class Commands(TyperGroup):
    """The group of commands, which are imported when they are asked for.

    An error that the user can correct is one line on standard error, without a traceback.
    """

    def _import(self, *names: str) -> None:
        for name in names:
            import_command(name)
        self.commands = {**typer.main.get_group(app).commands, **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None if there is none of the name."""
        if cmd_name not in self.commands:
            self._import(cmd_name)
        if cmd_name not in self.commands:  # the error names those like it
            self._import(*command_names())
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, group by group."""
        self._import(*command_names())
        groups = {name: getattr(command, "rich_help_panel", None) for name, command in self.commands.items()}
        order = (*PANELS, MISSING)
        return sorted(groups, key=lambda name: (order.index(str(groups[name])), name))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read these options wherever they stand: before the command, and among its options."""
        end = args.index("--") if "--" in args else len(args)
        ours: list[str] = []
        rest: list[str] = []
        for place, each in enumerate(args[:end]):
            is_ours = (
                each in (*_QUIET, _VERBOSE, _OUTSIDE)
                or each.split("=")[0] in _VALUED
                or args[max(0, place - 1)] in _VALUED
            )
            (ours if is_ours else rest).append(each)
        try:  # --version and --help print here
            return list(super().parse_args(ctx, [*ours, *rest, *args[end:]]))
        except OSError as error:
            if (text := _message(error)) is None:
                raise
            typer.echo(f"openvse: error: {text}", err=True)
            raise typer.Exit(2) from error

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Exit with code 2 for wrong input or a full disk, and with 128 + its number for a signal."""
        from openvse.cli.progress import Warnings, copyable, voice

        logger, warnings = logging.getLogger("openvse"), Warnings()
        logger.addHandler(warnings)
        try:
            with stoppable():
                return super().invoke(ctx)
        except typer.Exit:
            raise
        except (KeyboardInterrupt, Exception) as error:
            stop, text = stop_behind(error), _message(error)
            if stop is None and text is None:
                raise
            message, code = (f"error: {copyable(text or '')}", 2) if stop is None else describe_stop(stop)
        finally:
            logger.removeHandler(warnings)
            logger.setLevel(logging.NOTSET)
            warnings.close()
            voice.reset()
        # Only the first process of a run prints the line.
        if code > 128 and os.environ.get("RANK", "0") != "0":
            raise typer.Exit(code)
        with suppress(OSError):  # the terminal may be gone
            typer.echo(f"openvse: {' '.join(message.split())}", err=True)
        raise typer.Exit(code)


def _message(error: BaseException) -> str | None:
    """Return the user's message for an error, or None if the error is a bug in openvse."""
    if isinstance(error, OpenVSEError):
        return str(error)
    reason = refusal_of_disk(error)
    if isinstance(error, OSError) and error.filename is not None:  # about a file that the user named
        remedy = "make room, or choose another path" if error.errno in NO_ROOM else "choose another path"
        return f"{error.filename}: {error.strerror}: {remedy}"
    if reason is not None:
        return f"the disk cannot be written to ({reason}): make room, and run the command again"
    if isinstance(error, MemoryError) or "llocate memory" in str(error) or "out of memory" in str(error):
        words = message_of(error, 120) if str(error).strip() else ""
        return f"there is not enough memory{f' ({words})' * bool(words)}: choose smaller batches or a smaller model"
    if isinstance(error, EOFError):  # click would only say "Aborted."
        raise RuntimeError(f"a file ended too early: {error}") from error
    return None


app = typer.Typer(
    name="openvse",
    cls=Commands,
    help="Visual-semantic embedding: train models that place images and sentences in one space, evaluate them, and "
    "search with them.",
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
    context: typer.Context,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            help="A Python file with your own parts. Can be given several times. Also accepted after the command."
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            *_QUIET, help="Hide progress and notes, but show warnings and errors. Also accepted after the command."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option(_VERBOSE, help="Also explain the computation. Also accepted after the command.")
    ] = False,
    max_pixels: Annotated[
        int | None,
        typer.Option(
            _PIXELS,
            min=1,
            help="Largest width x height of an image to decode. Default: 80 million, which takes 0.3 to 1.4 GB of "
            "memory. Also accepted after the command.",
        ),
    ] = None,
    allow_outside: Annotated[
        bool,
        typer.Option(
            _OUTSIDE,
            help="Also use images outside of the data's folder, reached by ../, an absolute path or a link. "
            "Also accepted after the command.",
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Prepare every command, and run the plug-ins."""
    from openvse.cli.progress import voice
    from openvse.media.names import PIXELS_VARIABLE

    voice.quiet, voice.verbose, voice.allow_outside = quiet, verbose, allow_outside
    logging.getLogger("openvse").setLevel(logging.INFO if verbose else logging.NOTSET)
    if max_pixels is not None:
        os.environ[PIXELS_VARIABLE] = str(max_pixels)
    if context.invoked_subcommand == "serve":  # each thread would keep blocks of 16 MiB, such as the bodies of uploads
        _set({_MMAP_THRESHOLD: _LARGE, _TRIM_THRESHOLD: _LARGE, _ARENA_MAX: 2})
    else:
        keep_freed_memory()
    voice.plugins = tuple(plugin or ())
    voice.commands = tuple(command_names()) if plugin else ()
    for path in voice.plugins:
        load_plugin(path)


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h
_LARGEST = 2**31 - 1
_LARGE = 1 << 24


def keep_freed_memory() -> bool:
    """Let the GNU C library reuse large freed blocks instead of returning each to the system.

    A training step on a CPU frees hundreds of tensors of a few MiB and allocates them again in the next step. Each
    new page costs a page fault and is filled with zeros. Peak memory does not change, but is held until the end.
    Return whether the C library accepted the setting. Other libraries than GNU do not.
    """
    return _set({_MMAP_THRESHOLD: _LARGEST, _TRIM_THRESHOLD: _LARGEST})


def _set(settings: dict[int, int]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # imported only when a command runs

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return all(mallopt(setting, value) for setting, value in settings.items())
