"""``openvse compare``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    BatchSize,
    Device,
    Folds,
    Json,
    On,
    Overwrite,
    ProtocolName,
    Reranking,
    Split,
    Stores,
    TextFeatures,
    Threads,
    argument,
    few_first,
    option,
    print_json,
)
from openvse.cli.progress import bar, note, voice, warn
from openvse.errors import OpenVSEError
from openvse.files import refuse_there, write_page
from openvse.output.figures import import_figure

if TYPE_CHECKING:
    from openvse.evaluation.comparison import Comparison
    from openvse.evaluation.report import AnsweredQueries
    from openvse.report.tables import MeasuredReport, ReportedRun
    from openvse.tasks.runs import NamedRun
    from openvse.training.kind import Compared, LoadedRun, Request

Rows: TypeAlias = "Mapping[str, Sequence[NamedRun]]"
Page: TypeAlias = Annotated[
    Path | None,
    option(
        "Also write one page that needs no network: figures or wins and losses, the runs, their training.",
        metavar="FILE",
    ),
]
Format: TypeAlias = Annotated[
    Literal["text", "markdown", "latex"], option("Output: all tables, or one table in Markdown or LaTeX.", "--format")
]
NoTest: TypeAlias = Annotated[bool, option("Only write the page on training, without data or evaluation.", "--no-test")]


Named: TypeAlias = Annotated[
    list[str],
    argument(
        "Runs or models, the baseline first. Runs of one recipe with several seeds make one row. "
        "NAME=RUN,RUN makes a row of any runs. RUN+RUN averages scores, and RUN~MODEL reranks by a second model."
    ),
]
Again: TypeAlias = Annotated[
    str,
    option(
        "Reranking by the model of RUN~MODEL: it reranks the best N results, with weight W for its score and "
        "1 - W for the first score.",
        metavar="top=N,weight=W",
    ),
]
Resamples: TypeAlias = Annotated[
    int | None, option("Resamples of the bootstrap. Default: 2000, or 1000 for one run.", least=100)
]
Examples: TypeAlias = Annotated[int, option("Queries of each kind on the page.", least=0)]
Apart: TypeAlias = Annotated[bool, option("Make a row for each run, also for seeds of one recipe.", "--apart")]


@app.command(rich_help_panel="Explain", cls=few_first("on", "split", "features", "html", "form", "device"))
def compare(
    runs: Named,
    on: On = "",
    split: Split = "test",
    features: Stores = None,
    text_features: TextFeatures = None,
    html: Page = None,
    overwrite: Overwrite = False,
    form: Format = "text",
    examples: Examples = 6,
    apart: Apart = False,
    no_test: NoTest = False,
    folds: Folds = 1,
    protocol: ProtocolName = "",
    rerank: Again = "top=20,weight=1",
    resamples: Resamples = None,
    batch_size: BatchSize = 128,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Measure one run, or test whether several differ: paired intervals, sign tests, seeds, wins and losses.

    Without --on, the command reads the data and the store of the recipes.
    """
    from openvse.tasks.runs import parse_rows
    from openvse.training.kind import Request

    rows, again = parse_rows(runs, apart=apart), Reranking.read(f"MODEL,{rerank}")
    check(rows, html, overwrite=overwrite, no_test=no_test, protocol=protocol)
    if as_json and form != "text":
        raise OpenVSEError(f"--json and --format {form} both choose the output: give one of them")
    request = Request(
        on,
        split,
        tuple(features or ()),
        folds,
        text_features=text_features,
        allow_outside=voice.allow_outside,
        batch_size=batch_size,
        protocol=protocol,
        rerank_top=again.top,
        rerank_weight=again.weight,
        resamples=resamples or (1000 if single(rows) else 2000),
    )
    request.check_stores(sum(len(run.models) for group in rows.values() for run in group))
    measure(rows, request, html, device, examples, "json" if as_json else form, no_test=no_test)


def measure(
    rows: Rows, request: Request, html: Path | None, device: str, examples: int, form: str, *, no_test: bool
) -> None:
    """Measure the runs of all rows, print the result in a form, and write the page."""
    from openvse.report.tables import measure_run

    strict = not request.data or single(rows)
    opened = read_runs(rows, strict=strict) if strict or html is not None else []
    if no_test:
        write_runs(html, [measure_run(run, None, examples=0, device=device) for run in opened])
        return
    request = request if request.data else on_own_data(opened, request)
    with bar() as progress:
        request = replace(request, progress=progress.show)
        if single(rows):
            report = measure_run(opened[0], request, examples=examples if html else 0, device=device)
        else:
            loading = Loading(rows, device)
            compared = loading.kind().compare(loading, request)
    if single(rows):
        say_run(report, request, html, form=form)
    else:
        say_rows(rows, compared, [loading.report(run) for run in opened] if html else [], html, examples, form=form)


def single(rows: Rows) -> bool:
    """Return whether there is a single run of one model."""
    named = [run for group in rows.values() for run in group]
    return len(named) == len(named[0].models) == 1


def check(rows: Rows, html: Path | None, *, overwrite: bool, no_test: bool, protocol: str) -> None:
    """Fail early instead of after hours, if the runs make no rows or the page cannot be written."""
    runs = sum(map(len, rows.values()))
    if no_test and html is None:
        raise OpenVSEError("--no-test only writes a page: give --html FILE")
    if len(rows) < 2 and not (no_test or single(rows)):
        raise OpenVSEError(f"there is one row, {next(iter(rows))}, of {runs} run(s): name others, or give --apart")
    if protocol and not single(rows):
        raise OpenVSEError("--protocol is for a single run: name one, or give --folds")
    if html is not None:
        import_figure()
    if html is not None and html.is_dir():
        raise OpenVSEError(f"{html} is a folder: give --html a file, such as {html / 'runs.html'}")
    if html is not None and not overwrite:
        refuse_there([html], "choose another --html, or replace it with --overwrite")


def read_runs(rows: Rows, *, strict: bool) -> list[ReportedRun]:
    """Read the records of each run of one model. Unless ``strict``, warn of unreadable records."""
    from openvse.report.tables import read_run

    runs = []
    for run in (run for group in rows.values() for run in group if len(run.models) == 1):
        try:
            runs.append(read_run(run.source))
        except OpenVSEError as error:
            if strict:
                raise
            warn(f"the page leaves out the training of {run.source}: {error}")
    return runs


def on_own_data(runs: Sequence[ReportedRun], request: Request) -> Request:
    """Return the request with the data of the recipes, and with their store, if it is one and none is named."""
    data = list(dict.fromkeys(run.data() for run in runs))
    if len(data) != 1:
        raise OpenVSEError(f"the runs name no common data ({', '.join(data) or 'none'}): give --on DATA for all")
    stores = set() if request.features else {run.store() for run in runs} - {None}
    return replace(request, data=data[0], features=request.features or tuple(filter(None, stores))[:1])


class Loading:
    """The runs of all rows, of one task. Each run is loaded whenever they are iterated."""

    def __init__(self, rows: Rows, device: str) -> None:
        from openvse.tasks.load import load

        self._named = [run for group in rows.values() for run in group]
        self._device, self._first = device, load(self._named[0].models[0], device=device)
        self._weights: dict[str, tuple[int, int, str]] = {}

    def kind(self) -> Any:
        """Return the task of the runs."""
        from openvse.tasks import task_kind

        return task_kind(self._first.task)

    def __iter__(self) -> Iterator[LoadedRun]:
        from openvse.report.tables import weighed
        from openvse.tasks.load import load
        from openvse.training.kind import LoadedRun

        first = self._named[0]
        for run in self._named:
            models = [
                self._first if name == first.models[0] else load(name, device=self._device) for name in run.models
            ]
            for model in models:
                if model.task != self._first.task:
                    raise OpenVSEError(
                        f"{run.source} is for {model.task}, {first.source} for {self._first.task}: compare one task"
                    )
            self._weights[run.source] = weighed(models[0])
            yield LoadedRun(run.source, tuple(models), run.reranker is not None, run.models)

    def report(self, run: ReportedRun) -> MeasuredReport:
        """Return a run for the page, with the figures of the comparison."""
        from openvse.report.tables import MeasuredReport

        return MeasuredReport(run, *self._weights[run.named.source])


def say_run(report: MeasuredReport, request: Request, html: Path | None, *, form: str) -> None:
    """Print the figures of a single run in a form, warn of leakage, write the page."""
    from openvse.evaluation.report import measured_table
    from openvse.report.tables import remarks, shown_metrics, table_with_notes

    findings = report.findings
    assert findings is not None
    for line in (*report.leaks, *filter(None, [report.run.named.unfinished()])):
        warn(line)
    shown = findings.metrics, findings.intervals, findings.beside
    table = measured_table("", shown_metrics(findings), *shown, model=report.run.name)
    if form == "json":
        print_json("compare", values(report, request))
    else:
        typer.echo(table_with_notes(table, remarks(report), form).rstrip("\n"))
    write_runs(html, [report])


def values(report: MeasuredReport, request: Request) -> dict[str, Any]:
    """Return the figures of a single run as plain values: a comparison of one row, with its intervals beside."""
    from openvse.evaluation.comparison import Comparison, MeasuredRun, Row
    from openvse.report.tables import comparison_values

    findings = report.findings
    assert findings is not None
    run = MeasuredRun(report.run.named.source, report.fingerprint, findings.metrics, {}, {}, report.leaks)
    rows, folds = (Row(report.run.name, (run,)),), findings.size.get("folds", 1)
    size, asked = findings.size, (request.seed, request.resamples)
    tree = comparison_values(Comparison(findings.data, size, *asked, rows, (), findings.problems, folds))
    intervals = {name: [*pair] for name, pair in findings.intervals.items()}
    tree["rows"][0]["runs"][0] |= {"intervals": intervals, "beside": {**findings.beside}}
    return tree


def say_rows(
    rows: Rows, compared: Compared, reports: Sequence[MeasuredReport], html: Path | None, examples: int, *, form: str
) -> None:
    """Print the comparison of the rows in a form, warn of unfinished runs and leakage, write the page."""
    from openvse.evaluation.comparison import Row, contrast_rows
    from openvse.report.tables import comparison_text, comparison_values
    from openvse.tasks.runs import differing_data, differing_keys

    left = iter(compared.runs)  # the runs are measured in the order of the rows
    joined = [Row(name, tuple(next(left) for _ in group)) for name, group in rows.items()]
    problems = (*compared.frame.problems, *differing_data(rows))
    comparison = contrast_rows(replace(compared.frame, rows=tuple(joined), problems=problems))
    unfinished = filter(None, (run.unfinished() for group in rows.values() for run in group))
    for line in (*unfinished, *(warning for run in compared.runs for warning in run.warnings)):
        warn(line)
    if form == "json":
        print_json("compare", comparison_values(comparison))
    elif form == "text":
        typer.echo(comparison_text(comparison))
        for line in differing_keys(rows):
            typer.echo(line)
    else:
        typer.echo(table(rows, comparison, form).rstrip("\n"))
    first, *others = comparison.rows
    shown = {row.name: compared.examples(first, row, examples) for row in others} if html and examples else {}
    write_runs(html, reports, comparison, shown)


def table(rows: Rows, comparison: Comparison, form: str) -> str:
    """Return one table of the rows, with remarks of their runs on their training."""
    from openvse.report.tables import compared_notes, compared_table, row_facts, table_with_notes

    facts = {name: row_facts(group) for name, group in rows.items()}
    return table_with_notes(compared_table(comparison, facts), compared_notes(comparison, facts), form)


def write_runs(
    html: Path | None,
    reports: Sequence[MeasuredReport],
    comparison: Comparison | None = None,
    examples: Mapping[str, Sequence[AnsweredQueries]] | None = None,
) -> None:
    """Write the page, if requested."""
    if html is None:
        return
    from openvse.report.page import runs_page

    write_page(html, runs_page(reports, comparison, examples))
    note(f"written: {html}")
