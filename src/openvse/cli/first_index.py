"""A folder of images in place of an index: its index is made after a question, or updated."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.search.opening import FirstIndex, LoadedModel

Yes: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="Make the first index of a folder of images without asking, by --model, else "
        "OPENVSE_MODEL, else clip-b32.",
    ),
]


def index_of(folder: Path, model: str | None, *, yes: bool, device: str) -> tuple[Path, LoadedModel]:
    """Return the new or updated index of a folder of images, and the model that embeds its queries."""
    from openvse.cli.commands.indexing import show_step, warn_of
    from openvse.cli.progress import bar, note
    from openvse.search.opening import open_pictures

    with bar() as display:
        out, loaded, report = open_pictures(
            folder,
            model,
            partial(agree, yes=yes),
            device=device,
            progress=partial(show_step, display, folder),
        )
    if report is not None:
        warn_of(report)
        note(f"{out}: {report.count:,} images, up to date")
    return out, loaded


def agree(plan: FirstIndex, *, yes: bool) -> None:
    """Ask on a terminal whether to make an index. Raise OpenVSEError if the user does not want it."""
    from openvse.cli.progress import note

    if yes:
        note(str(plan))
    elif not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise OpenVSEError(f"{plan}: add --yes to make it")
    elif not typer.confirm(f"{plan}. Make it?", err=True):
        raise OpenVSEError("no index was made: name another model with --model, or an index")
