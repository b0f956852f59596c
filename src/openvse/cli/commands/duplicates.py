"""``openvse duplicates``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from openvse.cli.app import app
from openvse.cli.commands.search import write_paths
from openvse.cli.options import Json, argument, few_first, option, print_json
from openvse.cli.progress import bar, counted, warn
from openvse.errors import OpenVSEError
from openvse.media.names import escaped
from openvse.pipeline import tell_skipped


@app.command(
    rich_help_panel="Search",
    cls=few_first(
        *("threshold", "null", "as_json"), bare={"--null": ("facts-stay", "facts-may-go")}, renamed={"-0": "--null"}
    ),
)
def duplicates(
    source: Annotated[Path, argument("A folder of images, at any depth, or the folder of an index.")],
    threshold: Annotated[
        float | None, option("For an index: lowest cosine between an image and the one to keep.", shown="0.98")
    ] = None,
    null: Annotated[
        Literal["facts-stay", "facts-may-go"] | None,
        option(
            "Print the paths of all images but the ones to keep, each followed by a zero byte. By itself it leaves out "
            "those that state what the one to keep lacks or states otherwise, such as a caption.",
            *("--null", "-0"),
            metavar="[facts-may-go]",
        ),
    ] = None,
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
        kept = [path for group in groups for path in group.lost if null == "facts-stay"]
        write_paths([str(path) for group in groups for path in group[1:] if path not in kept], null=True)
        if kept:
            warn(f"{len(kept)} file(s) state what the ones to keep do not: -0 facts-may-go lists them, too")
        return
    if as_json:
        listed = [
            {
                "keep": keep,
                "why": group.why,
                "others": others,
                "lost": {str(path): group.lost[path] for path in group.lost},
            }
            for group in groups
            for keep, *others in [[*map(str, group)]]
        ]
        print_json("duplicates", {"source": str(source), "groups": listed})
        return
    for group in groups:
        typer.echo(f"keep  {escaped(group[0])}  ({group.why})")
        for other in group[1:]:
            lost = f"  (loses {', '.join(group.lost[other])})" if other in group.lost else ""
            typer.echo(f"      {escaped(other)}{lost}")
    count = sum(len(group) - 1 for group in groups)
    some = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
    typer.echo(f"{source}: {some}, {count} more than the images to keep")
