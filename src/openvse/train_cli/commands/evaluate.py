"""``openvse evaluate``, ``openvse compare`` and ``openvse encode``, which only read models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    Annotations,
    BatchSize,
    Device,
    Every,
    Exchanged,
    Folds,
    Json,
    ModelName,
    Models,
    On,
    Overwrite,
    ProtocolName,
    QueryBankSplit,
    Rerank,
    Reranking,
    RunSettings,
    Split,
    Stores,
    TextFeatures,
    Threads,
    argument,
    few_first,
    option,
    print_json,
    with_settings,
)
from openvse.cli.progress import bar, counted, going_on, note, voice, warn
from openvse.errors import ModelError, OpenVSEError
from openvse.files import refuse_there, replacing_files, write_page, write_whole
from openvse.media.names import escaped
from openvse.output.documents import percent
from openvse.output.figures import import_figure
from openvse.output.table import Table
from openvse.pipeline import tell_skipped
from openvse.train_cli.launching import leads, together

if TYPE_CHECKING:
    from openvse.encoding.run import EncodingReport
    from openvse.evaluation.comparison import Comparison
    from openvse.evaluation.report import AnsweredQueries
    from openvse.model.base import Model
    from openvse.report.tables import MeasuredReport, ReportedRun
    from openvse.scoring.calibration import Calibration
    from openvse.tasks.runs import NamedRun
    from openvse.training.kind import Compared, Evaluation, LoadedRun, Request

Records = Annotated[
    Path,
    argument(
        "A folder of images, at any depth, or a file that lists images or sentences: .txt with one a line, .csv, "
        ".tsv, .jsonl or .parquet with a column such as path or text, and perhaps id. Name other columns as in "
        "list.csv#image=COLUMN or list.csv#caption=COLUMN.",
        metavar="DATA",
    ),
]
Output = Annotated[Path, option("A file NAME.npy or NAME.parquet, or a folder, which gets Parquet files.", "--out")]
NumberType = Annotated[Literal["float32", "float16"], option("Number type of the embeddings.", "--dtype")]
ShardSize = Annotated[int, option("Records in a file of a folder, or in a row group of one Parquet file.", least=1)]


@app.command(rich_help_panel="Data")
@with_settings
@going_on("finished embeddings are kept: run the same command again to continue")
def encode(
    model: ModelName,
    data: Records,
    out: Output,
    *,
    dtype: NumberType = "float32",
    batch_size: BatchSize = 64,
    shard_size: ShardSize = 1024,
    overwrite: Overwrite = False,
    run: RunSettings,
    as_json: Json = False,
) -> None:
    """Write embeddings of images or sentences, with their ids, for other programs. A stopped run continues."""
    from openvse.encoding import encode as encode_data

    with bar() as progress:
        show = counted(progress, "encoding", "items")
        report = encode_data(
            model,
            data,
            out,
            dtype=dtype,
            batch_size=batch_size,
            shard_size=shard_size,
            workers=run.workers(),
            device=run.device,
            overwrite=overwrite,
            allow_outside=voice.allow_outside,
            progress=lambda state: show(state.done, state.total, state.per_s),
        )
    print_encoding(report, as_json=as_json)


def print_encoding(report: EncodingReport, *, as_json: bool) -> None:
    """Print the numbers of encoded and omitted items, as a line or as JSON."""
    tell_skipped(report.failed)
    if report.left_out:
        warn(report.left_out.describe())
    if as_json:
        result = {
            "out": str(report.out),
            "kind": report.kind,
            "count": report.count,
            "num_embeddings": report.num_embeddings,
            "dim": report.dim,
            "kept": report.earlier,
            "unreadable": len(report.failed),
            "failed": [{"id": item, "reason": reason} for item, reason in report.failed],
            "left_out": {kind: [*map(str, paths)] for kind, paths in report.left_out.files.items()},
        }
        print_json("encode", result)
        return
    several = f"{report.num_embeddings} x " if report.num_embeddings > 1 else ""
    earlier = f", {report.earlier:,} of an earlier run" if report.earlier else ""
    typer.echo(
        f"{escaped(report.out)}: {report.count:,} {report.kind}, {several}{report.dim} numbers each "
        f"({len(report.failed):,} left out{earlier})"
    )


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


Reports: TypeAlias = Annotated[Path | None, option("Folder for report.json and report.md.")]
Calibrate: TypeAlias = Annotated[
    bool,
    option(
        "Also fit the calibration curve, by which search shows probabilities, and keep it in the model's folder. "
        "Give data that the model was not trained on.",
        "--calibrate",
    ),
]
Processes: TypeAlias = Annotated[int, option("Number of processes on this machine that share the work.", least=1)]

WRITTEN = ("report.json", "report.md", "predictions.json", "reliability.png")
"""The files in ``--out`` afterwards. The last two are for questions and for probabilities."""


@app.command(
    rich_help_panel="Explain",
    cls=few_first(
        "on",
        "split",
        "features",
        "out",
        "device",
        "as_json",
        panels={
            "For papers": ("protocol", "annotations", "folds", "every", "query_bank", "exchanged"),
            "Speed": ("batch_size", "processes", "threads"),
        },
    ),
)
def evaluate(
    models: Models,
    on: On,
    split: Split = "test",
    features: Stores = None,
    text_features: TextFeatures = None,
    out: Reports = None,
    rerank: Rerank = None,
    query_bank: QueryBankSplit = "",
    folds: Folds = 1,
    protocol: ProtocolName = "",
    annotations: Annotations = None,
    every: Every = False,
    exchanged: Exchanged = False,
    calibrate: Calibrate = False,
    batch_size: BatchSize = 128,
    processes: Processes = 1,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Measure retrieval in both directions or answer accuracy, with intervals. Several models are averaged."""
    from openvse.tasks import task_kind
    from openvse.tasks.runs import find_run
    from openvse.training.kind import Request

    if out is not None:
        refuse_there([out / name for name in WRITTEN], "choose another --out, or delete it first")
    again = Reranking.read(rerank or "")
    if again.features is not None:
        raise OpenVSEError("--rerank takes no features here: --features names the stores of all models")
    places = [find_run(name).model for name in (models if rerank is None else [*models, again.model])]
    curve_file = curve_of(places[0]) if calibrate else None
    with together(processes, device) as group, bar(shown=leads()) as progress:
        loaded, task = load_all(places, device)
        request = Request(
            on,
            split,
            tuple(features or ()),
            folds,
            text_features=text_features,
            rerank=rerank is not None,
            rerank_top=again.top,
            rerank_weight=again.weight,
            allow_outside=voice.allow_outside,
            batch_size=batch_size,
            progress=progress.show,
            exchanged=exchanged,
            every=every,
            protocol=protocol,
            annotations=annotations,
            processes=group,
            query_bank=query_bank,
            calibrate=calibrate,
            places=places,
        )
        evaluation = task_kind(task).evaluate(loaded, request)
    say(evaluation, {"task": task, "data": on, "split": split} if as_json else None)
    write(evaluation, out, curve_file)


def load_all(names: Sequence[str], device: str) -> tuple[list[Model], str]:
    """Return models of one task, and the task. Raise OpenVSEError if one cannot be loaded, or has another task."""
    from openvse.tasks.load import load

    loaded = [load(name, device=device) for name in names]
    task, *others = dict.fromkeys(model.task for model in loaded)
    if others:
        raise OpenVSEError(
            f"the models are for different tasks ({task}, {', '.join(others)}): evaluate models of one task together"
        )
    return loaded, task


def say(evaluation: Evaluation, asked: Mapping[str, object] | None) -> None:
    """Print an evaluation as a table, or as JSON with ``asked``. The first of several processes prints."""
    if not leads():
        return
    for warning in evaluation.warnings:
        warn(warning)
    if asked is not None:
        curve = evaluation.calibration
        fitted = {} if curve is None else {"calibration": json.loads(curve.to_json())}
        print_json("evaluate", {**asked, "report": json.loads(evaluation.to_json()), **fitted})
        return
    if table := evaluation.to_markdown():
        typer.echo(table)
    if evaluation.calibration is not None:
        typer.echo(curve_text(evaluation.calibration))


def write(evaluation: Evaluation, out: Path | None, curve_file: Path | None) -> None:
    """Write the files of an evaluation and its curve. The first of several processes writes."""
    if not leads():
        return
    written: list[Path] = []
    if out is not None:
        with replacing_files(out, WRITTEN[0]) as partial:
            written = [out / path.relative_to(partial) for path in evaluation.write(partial)]
    if curve_file is not None and evaluation.calibration is not None:
        write_whole(curve_file, evaluation.calibration.to_json())
        written.append(curve_file)
    if written:
        note(f"written: {', '.join(map(str, written))}")


def curve_of(model: str) -> Path:
    """Return the file of a model's calibration curve. Raise ModelError if it has no folder on this machine."""
    from openvse.conversion.convert import published_folder
    from openvse.scoring.calibration import CALIBRATION

    folder = Path(model) if Path(model).is_dir() else published_folder(model)
    if folder is None:
        raise ModelError(
            f"{model} is no model folder, and --calibrate keeps the curve in the folder: convert or download the model "
            f"first"
        )
    return folder / CALIBRATION


def curve_text(calibration: Calibration) -> str:
    """Return the data of a calibration curve, and a table of precisions with their scores."""
    from openvse.scoring.calibration import PRECISIONS

    data = calibration.data
    rows = []
    for precision in PRECISIONS:
        score = calibration.threshold(precision)
        found = "" if score is None else percent(calibration.recall(score))
        rows.append([f"{precision:g}", "out of reach" if score is None else f"{score:.4f}", found])
    table = Table(["precision", "score from", "relevant pairs found"], rows).to_markdown()
    return (
        f"\n## Calibration curve\n\nFitted to {data.num_pairs:,} relevant pairs of {data.name}.\n\n{table}\n\n"
        f"This holds for a search in {data.num_images:,} images. In a larger index, a precision needs a higher score."
    )
