"""``openvse index``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app
from openvse.cli.index_options import (
    Add,
    CheckAll,
    Compact,
    Features,
    Folders,
    Forget,
    Ignore,
    IndexModel,
    NumberFormat,
    Out,
    Overwrite,
    SegmentSeconds,
)
from openvse.cli.options import Device, Json, Quiet, Threads
from openvse.cli.stopping import going_on

if TYPE_CHECKING:
    from openvse.search import IndexReport


@app.command()
@going_on("what was embedded is kept; run the same command again to continue")
def index(
    model: IndexModel,
    folders: Folders,
    out: Out = Path("index"),
    add: Add = False,
    forget: Forget = None,
    ignore: Ignore = None,
    segment_seconds: SegmentSeconds = None,
    batch_size: Annotated[int, typer.Option(min=1, help="How many images are embedded at a time.")] = 64,
    dtype: NumberFormat = None,
    features: Features = None,
    overwrite: Overwrite = False,
    compact: Compact = False,
    check: CheckAll = False,
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
            segment_seconds=segment_seconds,
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
    from openvse.cli.search_output import warn_of_skipped
    from openvse.media.names import escaped

    if report.upgraded_from:
        note(
            f"the index was of format {report.upgraded_from}, and is now of format 3; nothing was embedded for that"
        )
    warn_of_skipped(report.failed)
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
            "segments": report.segments,
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
        "segments of clips": report.segments,
        "kept by the stopped run": report.resumed,
        "from stored features": report.stored,
        "moved or copied": report.recognised,
        "removed": report.removed,
    }
    parts = [f"{report.reused} unchanged", *(f"{count} {what}" for what, count in more.items() if count)]
    typer.echo(f"{out}: {report.count} {report.holds} ({', '.join(parts)}, {len(report.failed)} unreadable)")
    if report.compacted:
        typer.echo(f"{report.compacted} rows that were no longer needed are gone from its files")
