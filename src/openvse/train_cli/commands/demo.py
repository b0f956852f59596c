"""``openvse demo``."""

from __future__ import annotations

from pathlib import Path

import typer

from openvse.cli.app import app
from openvse.cli.options import Out, RunDevice, Threads
from openvse.cli.stopping import going_on


@app.command(rich_help_panel="Train")
@going_on("what was finished is kept; run the same command again to continue")
def demo(
    out: Out = Path("demo_output"),
    device: RunDevice = None,
    threads: Threads = None,
) -> None:
    """Train on images of emoji, compare the result with chance, and search: a few minutes on two cores, offline."""
    from openvse.cli.progress import bar, counted, note
    from openvse.demo import BEYOND, QUERIES, run_demo
    from openvse.train_cli.training_bar import TrainingBar

    note("openvse demo: OpenMoji images (CC BY-SA 4.0) with names and keywords from Unicode CLDR")
    with bar() as progress:
        watcher, prepare = TrainingBar(progress), counted(progress, "preparing", "items")
        overrides = [] if device is None else [f"training.device={device}"]
        result = run_demo(out, seed=0, watcher=watcher, on_images=prepare, overrides=overrides)
    typer.echo(result.table)
    for query, hits in zip(QUERIES, result.answers, strict=True):
        shown = ", ".join(
            f"{hit.label}{' (held out)' if hit.held_out else ''} {hit.score:.2f}" for hit in hits[:5]
        )
        typer.echo(f"{query!r}: {shown}" + (f"\n  ({BEYOND[query]})" if query in BEYOND else ""))
    typer.echo(f"\nreport: {result.report}\ncontact sheet (open it in a browser): {result.contact_sheet}")
    typer.echo(f"search it yourself: openvse search {result.index} 'angry face'")
