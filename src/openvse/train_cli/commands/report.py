"""``openvse report``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    AllowOutside,
    BatchSize,
    Device,
    Folds,
    Json,
    ProtocolName,
    Split,
    Stores,
    Threads,
)
from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.report import MeasuredReport, ReportedRun
    from openvse.training.kind import Request

PAGE = "report.html"


Runs: TypeAlias = Annotated[
    list[str],
    typer.Argument(help="Folders of runs; a model folder or a name from 'openvse list models' needs --on."),
]
On: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="The test data, as for 'openvse evaluate'. Default: the data and the store of the recipe.",
    ),
]
NoTest: TypeAlias = Annotated[
    bool,
    typer.Option("--no-test", help="Report the training alone: evaluate nothing, and read no data."),
]
NoUntrained: TypeAlias = Annotated[
    bool, typer.Option("--no-untrained", help="Leave out the figures of the models before training.")
]
Format: TypeAlias = Annotated[
    Literal["html", "markdown", "latex"],
    typer.Option("--format", help="A page, or the table of figures in Markdown or LaTeX."),
]


@app.command(rich_help_panel="Explain")
def report(
    runs: Runs,
    on: On = None,
    split: Split = "test",
    features: Stores = None,
    no_test: NoTest = False,
    no_untrained: NoUntrained = False,
    form: Format = "html",
    out: Annotated[
        Path | None, typer.Option(help=f"File to write. Default: RUN/{PAGE}; a table is printed.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    examples: Annotated[
        int, typer.Option(min=0, help="Best and worst queries of each kind on the page.")
    ] = 6,
    folds: Folds = 1,
    protocol: ProtocolName = "",
    allow_outside: AllowOutside = False,
    batch_size: BatchSize = 128,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Report runs on one page that needs no network: data, training, figures, best and worst queries."""
    from openvse.cli.progress import bar
    from openvse.report import measure_run, read_run
    from openvse.training.kind import Request

    if no_test and form != "html":
        raise OpenVSEError(
            f"--format {form} is a table of figures, and --no-test leaves no figures: leave one of them out"
        )
    place = place_of(runs, out, form, overwrite=overwrite)
    opened = [read_run(source) for source in runs]
    measured: list[MeasuredReport] = []
    with bar() as progress:
        request = Request(
            on or "",
            split,
            tuple(features or ()),
            folds,
            allow_outside=allow_outside,
            batch_size=batch_size,
            progress=progress.show,
            protocol=protocol,
        )
        asked = [None] * len(opened) if no_test else requests_of(opened, request)
        shown = examples if form == "html" else 0
        for run, one in zip(opened, asked, strict=True):
            measured.append(measure_run(run, one, examples=shown, device=device, untrained=not no_untrained))
    say(measured, form, place, as_json=as_json)


def place_of(runs: Sequence[str], out: Path | None, form: str, *, overwrite: bool) -> Path | None:
    """Return the file to write, or None to print; refuse what would fail only after the evaluation."""
    from openvse.files import refuse_there

    if len(set(runs)) < len(runs):
        raise OpenVSEError("a run is named twice: name each run once")
    if out is None and form != "html":
        return None
    if out is None:
        folder = Path(runs[0])
        if len(runs) > 1 or not folder.is_dir():
            missing = "" if len(runs) > 1 or folder.exists() else f"there is no folder {folder} here, and "
            raise OpenVSEError(f"{missing}a page about {', '.join(runs)} needs a place: give --out FILE.html")
        out = folder / PAGE
    if out.is_dir():
        raise OpenVSEError(f"{out} is a folder: give --out a file, such as {out / PAGE}")
    if not overwrite:
        refuse_there([out], "choose another --out, or replace it with --overwrite")
    return out


def requests_of(runs: Sequence[ReportedRun], request: Request) -> list[Request]:
    """Return the request of each run: the data and the stores that were given, or else those of its recipe."""
    from dataclasses import replace

    if len(request.features) not in (0, 1, len(runs)):
        raise OpenVSEError(
            f"--features is given {len(request.features)} times for {len(runs)} run(s): give it once for all, or once "
            f"per run"
        )
    data = [request.data or run.data() for run in runs]
    if len(set(data)) > 1:
        raise OpenVSEError(
            f"the runs were trained on different data ({', '.join(dict.fromkeys(data))}): give --on DATA to evaluate "
            f"all of them on the same"
        )
    stores = [
        request.store(number) if request.features or request.data else run.store()
        for number, run in enumerate(runs)
    ]
    return [
        replace(request, data=source, features=() if store is None else (store,))
        for source, store in zip(data, stores, strict=True)
    ]


def say(measured: Sequence[MeasuredReport], form: str, place: Path | None, *, as_json: bool) -> None:
    """Write or print the page or the table, or the figures as JSON; warn of leakage."""
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import note, warn
    from openvse.files import write_page
    from openvse.report import figures_table, remarks, report_page, table_with_notes

    unfinished = filter(None, (each.run.named.unfinished() for each in measured))
    for line in (*(line for each in measured for line in each.leaks), *unfinished):
        warn(line)
    content = (
        report_page(measured)
        if form == "html"
        else table_with_notes(figures_table(measured), remarks(measured), form)
    )
    if place is not None:
        write_page(place, content)
        note(f"written: {place}")
    if as_json:
        runs = [values(each) for each in measured]
        print_json("report", {"written": None if place is None else str(place), "runs": runs})
    elif place is None:
        typer.echo(content.rstrip("\n"))


def values(each: MeasuredReport) -> Mapping[str, Any]:
    """Return the figures of a run as plain values; docs/json.md describes them."""
    from openvse.evaluation.findings import Findings

    findings, before = each.findings or Findings("", {}, {}), each.before
    return {
        "source": each.run.named.source,
        "model": each.fingerprint,
        "data": findings.data or None,
        "metrics": findings.metrics,
        "intervals": {name: [*pair] for name, pair in findings.intervals.items()},
        "before": None if before is None else {"label": before[0], "metrics": before[1]},
        "beside": {**findings.beside},
        "problems": [*findings.problems],
    }
