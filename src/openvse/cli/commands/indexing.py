"""``openvse index``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from openvse.cli.app import app
from openvse.cli.options import Device, Json, Quiet, Threads
from openvse.cli.stopping import going_on

if TYPE_CHECKING:
    from openvse.search import IndexReport


@app.command()
@going_on("what was embedded is kept; run the same command again to go on")
def index(
    model: Annotated[
        str, typer.Argument(help="A model folder, a hub id, or a name that 'openvse models' lists.")
    ],
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Folders of images, at any depth; or a text file with a sentence a line, to find captions by images.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The index folder.")] = Path("index"),
    add: Annotated[
        bool, typer.Option("--add", help="Add the folders to those that the index already holds.")
    ] = False,
    forget: Annotated[
        list[Path] | None,
        typer.Option(help="A folder to remove from the index, with its items; may be given several times."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            help="A pattern of files or folders to skip, as in .gitignore; may be given several times, and is "
            "remembered. So is a file .openvseignore in a folder."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="How many images are embedded at a time.")] = 64,
    dtype: Annotated[
        Literal["float32", "float16"] | None,
        typer.Option(
            help="How a number is stored: float16 halves disk and memory. By default that of the index, and float32 "
            "for a new one."
        ),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            help="A feature store, read instead of images that have not changed since; by default that of the "
            "model's run."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an index of another model or of another folder.")
    ] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Rewrite the files without what is no longer needed in them.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compare the whole index with its checksums, before and after; what is damaged is embedded again.",
        ),
    ] = False,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Embed folders of images for search; a later run embeds only what changed, and goes on after a stop."""
    from dataclasses import replace

    from openvse.cli.progress import bar, counted
    from openvse.model import TwoTower
    from openvse.search import Index, build_index, compact_index, forget_root, place_of, stored_images
    from openvse.tasks.load import load_as

    loaded = load_as(TwoTower, model, device=device)
    for folder in forget or ():
        forget_root(out, folder)
    with bar() as progress:
        show = counted(progress, "indexing")
        report = build_index(
            loaded,
            folders,
            out,
            batch_size=batch_size,
            dtype=dtype,
            overwrite=overwrite,
            add=add,
            ignore=ignore,
            check=check,
            stored=stored_images(loaded, model, features),
            model_place=place_of(model, out),
            progress=lambda state: show(state.done, state.total, state.images_per_s),
        )
    if compact:
        report = replace(report, compacted=report.compacted + compact_index(out))
    warn_of(report)
    if check:
        Index.open(out, loaded.fingerprint, check=True)
    print_report(out, report, as_json=as_json)


def warn_of(report: IndexReport) -> None:
    """Warn of what could not be used or looked at."""
    from openvse.cli.progress import note, warn
    from openvse.media.names import escaped

    if report.upgraded_from:
        note(
            f"the index was of format {report.upgraded_from}, and is now of format 3; nothing was embedded for that"
        )
    for path, reason in report.failed:
        warn(f"skipped {escaped(path)}: {reason}")
    for path, reason in report.kept:
        warn(f"{escaped(path)}: {reason}")
    for path, lines in report.bad_metadata:
        first = f"{len(lines)} lines" if len(lines) > 1 else "a line"
        warn(f"{escaped(path)}: {first} could not be understood (first: line {lines[0]}), and says nothing")
    if report.left_out:
        warn(report.left_out.describe())


def print_report(out: Path, report: IndexReport, *, as_json: bool) -> None:
    """Print what indexing did, as a line or as JSON."""
    from openvse.cli.json_output import print_json

    if as_json:
        counts = {
            "images": report.count,
            "unchanged": report.reused,
            "resumed": report.resumed,
            "stored": report.stored,
            "recognised": report.recognised,
            "removed": report.removed,
            "compacted": report.compacted,
            "unreadable": len(report.failed),
        }
        failed, kept = (
            [{"path": str(path), "reason": reason} for path, reason in paths]
            for paths in (report.failed, report.kept)
        )
        left_out = {kind: [str(path) for path in paths] for kind, paths in report.left_out.files.items()}
        print_json(
            "index", {"index": str(out), **counts, "failed": failed, "kept": kept, "left_out": left_out}
        )
        return
    more = {
        "kept by the stopped run": report.resumed,
        "from stored features": report.stored,
        "moved or copied": report.recognised,
        "removed": report.removed,
    }
    parts = [f"{report.reused} unchanged", *(f"{count} {what}" for what, count in more.items() if count)]
    typer.echo(f"{out}: {report.count} {report.holds} ({', '.join(parts)}, {len(report.failed)} unreadable)")
    if report.compacted:
        typer.echo(f"{report.compacted} rows that were no longer needed are gone from its files")
