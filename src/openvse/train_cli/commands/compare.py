"""``openvse compare``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    AllowOutside,
    BatchSize,
    Device,
    Folds,
    Json,
    On,
    Reranking,
    Split,
    Stores,
    TextFeatures,
    Threads,
)
from openvse.errors import OpenVSEError
from openvse.files import refuse_there

if TYPE_CHECKING:
    from openvse.evaluation import AnsweredQueries, Comparison
    from openvse.tasks.runs import NamedRun
    from openvse.training.kind import Compared, LoadedRun, Request

PAGE, VALUES, TABLES = "comparison.html", "comparison.json", "comparison.md"

Out: TypeAlias = Annotated[
    Path | None, typer.Option(help=f"Folder for {PAGE} (with wins and losses), {VALUES} and {TABLES}.")
]
Format: TypeAlias = Annotated[
    Literal["text", "markdown", "latex"],
    typer.Option(
        "--format", help="What is printed: all tables, or one table of the rows in Markdown or LaTeX."
    ),
]


@app.command(rich_help_panel="Explain")
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Runs or models, the baseline first. Runs of one recipe with several seeds make one row; "
            "NAME=RUN,RUN makes a row of any runs. RUN+RUN averages scores, and RUN~MODEL lets a model re-rank."
        ),
    ],
    on: On,
    split: Split = "test",
    features: Stores = None,
    text_features: TextFeatures = None,
    out: Out = None,
    form: Format = "text",
    examples: Annotated[int, typer.Option(min=0, help="Wins and losses of each kind on the page.")] = 8,
    apart: Annotated[
        bool, typer.Option("--apart", help="A row for each run, also for seeds of one recipe.")
    ] = False,
    folds: Folds = 1,
    rerank: Annotated[
        str,
        typer.Option(
            metavar="top=N,weight=W",
            help="How the model of RUN~MODEL ranks the best N results again: with W of its score, and 1 - W of the "
            "first one.",
        ),
    ] = "top=20,weight=1",
    resamples: Annotated[int, typer.Option(min=100, help="Resamples of the bootstrap.")] = 2000,
    allow_outside: AllowOutside = False,
    batch_size: BatchSize = 128,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Say whether runs differ on a test set: paired intervals, exact sign tests, seeds, wins and losses."""
    from openvse.cli.progress import bar
    from openvse.tasks.runs import parse_rows
    from openvse.training.kind import Request

    rows, again = parse_rows(runs, apart=apart), Reranking.read(f"MODEL,{rerank}")
    check_place(rows, features or (), out)
    if as_json and form != "text":
        raise OpenVSEError(f"--json and --format {form} both say what is printed: give one of them")
    with bar() as progress:
        request = Request(
            on,
            split,
            tuple(features or ()),
            folds,
            text_features=text_features,
            allow_outside=allow_outside,
            batch_size=batch_size,
            progress=progress.show,
            rerank_top=again.top,
            rerank_weight=again.weight,
            resamples=resamples,
        )
        compared = measure(rows, request, device)
    say(rows, compared, out, examples, form="json" if as_json else form)


def say(
    rows: Mapping[str, Sequence[NamedRun]],
    compared: Compared,
    out: Path | None,
    examples: int,
    *,
    form: str,
) -> None:
    """Print the comparison of the rows in a form, warn of unfinished runs and leakage, write files."""
    from dataclasses import replace

    from openvse.cli.json_output import print_json
    from openvse.cli.progress import warn
    from openvse.evaluation import Row, contrast_rows
    from openvse.evaluation.comparison import comparison_text, comparison_values
    from openvse.tasks.runs import differing_data

    left = iter(compared.runs)  # the runs are measured in the order of the rows
    joined = [Row(name, tuple(next(left) for _ in group)) for name, group in rows.items()]
    frame = compared.comparison(joined)
    comparison = contrast_rows(replace(frame, problems=(*frame.problems, *differing_data(rows))))
    unfinished = filter(None, (run.unfinished() for group in rows.values() for run in group))
    for line in (*unfinished, *(warning for run in compared.runs for warning in run.warnings)):
        warn(line)
    if form == "json":
        print_json("compare", comparison_values(comparison))
    elif form == "text":
        typer.echo(comparison_text(comparison))
    else:
        typer.echo(table(rows, comparison, form).rstrip("\n"))
    if out is not None:
        write(out, comparison, compared, examples)


def table(rows: Mapping[str, Sequence[NamedRun]], comparison: Comparison, form: str) -> str:
    """Return one table of the rows, with what their runs say about their training."""
    from openvse.report import compared_notes, compared_table, row_facts, table_with_notes

    facts = {name: row_facts(group) for name, group in rows.items()}
    return table_with_notes(compared_table(comparison, facts), compared_notes(comparison, facts), form)


def check_place(rows: Mapping[str, Sequence[NamedRun]], features: Sequence[Path], out: Path | None) -> None:
    """Refuse what would fail only after hours: one row, a wrong number of stores, a comparison that is there."""
    count = sum(map(len, rows.values()))
    models = sum(len(run.models) for group in rows.values() for run in group)
    if len(rows) < 2:
        raise OpenVSEError(
            f"there is one row, {next(iter(rows))}, of {count} run(s): name runs of another recipe, or give --apart"
        )
    if len(features) not in (0, 1, models):
        raise OpenVSEError(
            f"--features is given {len(features)} times for {models} models: give it once for all, or once per model, "
            f"in their order"
        )
    if out is not None:
        refuse_there(
            [out / name for name in (PAGE, VALUES, TABLES)], "choose another --out, or delete it first"
        )


def measure(rows: Mapping[str, Sequence[NamedRun]], request: Request, device: str) -> Compared:
    """Measure the runs of all rows, one model in memory at a time."""
    from openvse.tasks import kind_of
    from openvse.tasks.load import load
    from openvse.training.kind import LoadedRun

    named = [run for group in rows.values() for run in group]
    first = load(named[0].models[0], device=device)

    class Loading:
        """The runs; each is loaded whenever they are iterated."""

        def __iter__(self) -> Iterator[LoadedRun]:
            for run in named:
                models = [
                    first if name == named[0].models[0] else load(name, device=device) for name in run.models
                ]
                for model in models:
                    if model.task != first.task:
                        raise OpenVSEError(
                            f"{run.source} is for another task ({model.task}) than {named[0].source} "
                            f"({first.task}): compare models of one task"
                        )
                yield LoadedRun(run.source, tuple(models), run.reranker is not None, run.models)

    return kind_of(first.task).compare(Loading(), request)


def write(out: Path, comparison: Comparison, compared: Compared, count: int) -> None:
    """Write the page, the values and the tables."""
    import json

    from openvse.cli.progress import note
    from openvse.evaluation.comparison import comparison_markdown, comparison_values
    from openvse.evaluation.comparison_page import comparison_page
    from openvse.files import write_page

    first, *others = comparison.rows
    shown: dict[str, Sequence[AnsweredQueries]] = {
        row.name: compared.examples(first, row, count) if count else () for row in others
    }
    values = json.dumps(comparison_values(comparison), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    contents = {
        PAGE: comparison_page(comparison, shown),
        VALUES: values,
        TABLES: comparison_markdown(comparison),
    }
    for name, content in contents.items():
        write_page(out / name, content)
    note(f"written: {', '.join(str(out / name) for name in contents)}")
