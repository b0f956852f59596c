"""The analyses that need no captions: times, and images that are in two splits."""

from __future__ import annotations

from typing import Annotated

import typer

from openvse.cli.commands.analyze import Models, On, Out, Overwrite, analyze_app, begin, finish
from openvse.cli.options import AllowOutside, Json, Quiet, Threads

Repeats = Annotated[int, typer.Option(min=1, help="Repetitions; the median is reported.")]


@analyze_app.command("retrieval-time")
def retrieval_time(
    models: Models,
    out: Out,
    sizes: Annotated[
        str, typer.Option(help="Images in the gallery, with commas between.")
    ] = "100,1000,10000,100000",
    tokens: Annotated[int, typer.Option(min=1, help="Local features of an image, for pair scorers.")] = 36,
    repeats: Repeats = 5,
    overwrite: Overwrite = False,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time of a query against the size of the gallery; close other programs.

    Embeddings are random and have the shape of those of each MODEL, so that no data are needed.
    """
    from openvse.analysis.opening import open_towers
    from openvse.analysis.speed import RETRIEVAL, analyze_retrieval_time, time_retrieval
    from openvse.analysis.sweep_figures import parse_counts

    begin(out, RETRIEVAL, overwrite=overwrite)
    numbers = parse_counts(sizes, "--sizes")
    timed = time_retrieval(open_towers(models, "cpu"), numbers, repeats=repeats, tokens=tokens)
    finish(analyze_retrieval_time(timed), out, overwrite=overwrite, as_json=as_json)


@analyze_app.command("pooling-speed")
def pooling_speed(
    out: Out,
    poolings: Annotated[
        list[str] | None, typer.Argument(help="Aggregators. Default: those of VSE+2AD's Table 4.")
    ] = None,
    elements: Annotated[int, typer.Option(min=1, help="Local features of an item.")] = 36,
    width: Annotated[int, typer.Option(min=1, help="Width of the features.")] = 1024,
    batch_size: Annotated[int, typer.Option(min=1, help="Items in a batch.")] = 128,
    repeats: Repeats = 5,
    overwrite: Overwrite = False,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Items per second of poolings; close other programs."""
    from openvse.analysis.speed import POOLING, POOLINGS, analyze_pooling_speed, time_poolings

    begin(out, POOLING, overwrite=overwrite)
    speeds = time_poolings(
        poolings or POOLINGS, elements=elements, width=width, batch=batch_size, repeats=repeats
    )
    finish(analyze_pooling_speed(speeds), out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def duplicates(
    on: On,
    out: Out,
    allow_outside: AllowOutside = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Images of different splits that look alike, as a list and a page."""
    from openvse.analysis.duplicates import NAME, analyze_duplicates
    from openvse.cli.progress import bar
    from openvse.datasets import open_corpus

    begin(out, NAME, overwrite=overwrite)
    with bar() as progress:
        found = analyze_duplicates(open_corpus(on, allow_outside=allow_outside), progress.show)
    finish(found, out, overwrite=overwrite, as_json=as_json)
