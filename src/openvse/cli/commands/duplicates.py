"""``openvse duplicates``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.cli.commands.search import write_paths
from openvse.cli.json_output import print_json
from openvse.cli.options import Json, argument, option
from openvse.cli.progress import bar, counted
from openvse.errors import OpenVSEError
from openvse.media.names import escaped
from openvse.pipeline import tell_skipped


@app.command(rich_help_panel="Search")
def duplicates(
    source: Annotated[Path, argument("A folder of images, at any depth, or the folder of an index.")],
    threshold: Annotated[
        float | None, option("For an index: lowest cosine between an image and the one to keep.", shown="0.98")
    ] = None,
    null: Annotated[
        bool,
        option("Print the paths of all images but the ones to keep, each followed by a zero byte.", "--null", "-0"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Find images that are equal or nearly equal, and name the one of each group to keep, without deleting any.

    For a folder, the command compares the pictures themselves and needs no model. For an index, it compares embeddings,
    and finds other takes of a scene, too.
    """
    from openvse.search import find_duplicates

    if null and as_json:
        raise OpenVSEError("one output at a time: give --json or --null")
    with bar() as progress:
        show = counted(progress, "reading")
        groups, failed = find_duplicates(source, threshold, lambda done, total: show(done, total, 0.0))
    tell_skipped(failed)
    if null:
        write_paths([str(path) for group in groups for path in group[1:]], null=True)
        return
    if as_json:
        listed = [{"keep": str(keep), "others": list(map(str, others))} for keep, *others in groups]
        print_json("duplicates", {"source": str(source), "groups": listed})
        return
    for keep, *others in groups:
        typer.echo(f"keep  {escaped(keep)}")
        for other in others:
            typer.echo(f"      {escaped(other)}")
    count = sum(len(group) - 1 for group in groups)
    some = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
    typer.echo(f"{source}: {some}, {count} more than the images to keep")
