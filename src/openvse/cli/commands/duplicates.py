"""``openvse duplicates``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Json
from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.search.duplicates import DuplicateGroup


@app.command(rich_help_panel="Search")
def duplicates(
    source: Annotated[
        Path, typer.Argument(help="A folder of images, at any depth, or the folder of an index.")
    ],
    threshold: Annotated[
        float, typer.Option(help="For an index: the lowest cosine between two images of a group.")
    ] = 0.98,
    null: Annotated[
        bool,
        typer.Option(
            "--null",
            "-0",
            help="Print the paths of all images but the ones to keep, each with a zero byte behind it.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Find images that are the same or nearly so, and say which of each group to keep; nothing is deleted.

    A folder is compared by how its images look, which needs no model; an index by its embeddings, which finds other
    takes of a scene, too.
    """
    from openvse.cli.commands.search import write_paths
    from openvse.cli.progress import bar, counted, warn_of_skipped
    from openvse.index.manifest import MANIFEST
    from openvse.search import Index
    from openvse.search.duplicates import duplicates_in_folder, duplicates_in_index

    if null and as_json:
        raise OpenVSEError("one output at a time: give --json or --null")
    if (source / MANIFEST).is_file():
        groups = duplicates_in_index(Index.open(source), threshold)
    else:
        with bar() as progress:
            show = counted(progress, "reading")
            groups, failed = duplicates_in_folder(source, lambda done, total: show(done, total, 0.0))
        warn_of_skipped(failed)
    if null:
        write_paths([str(other.path) for group in groups for other in group.others], null=True)
    else:
        print_groups(source, groups, as_json=as_json)


def print_groups(source: Path, groups: list[DuplicateGroup], *, as_json: bool) -> None:
    """Print the groups, as lists or as JSON."""
    from openvse.cli.json_output import print_json
    from openvse.media.names import escaped

    if as_json:
        listed = [
            {"keep": str(group.keep.path), "others": [str(other.path) for other in group.others]}
            for group in groups
        ]
        print_json("duplicates", {"source": str(source), "groups": listed})
        return
    for group in groups:
        typer.echo(f"keep  {escaped(group.keep.path)}")
        for other in group.others:
            typer.echo(f"      {escaped(other.path)}")
    others = sum(len(group.others) for group in groups)
    some = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
    typer.echo(f"{source}: {some}, {others} more than the images to keep")
