"""``openvse analyze``: the frame of the analyses, and those that need only models or runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import Device, Json, Quiet, Threads

if TYPE_CHECKING:
    from openvse.analysis.result import Analysis

analyze_app = typer.Typer(
    help="Explain models: figures (PNG and SVG) that can go into a paper as they are, and their numbers (CSV).",
    no_args_is_help=True,
    subcommand_metavar="KIND MODEL... --out FOLDER",
)
app.add_typer(analyze_app, name="analyze")

Models: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        help="Runs or models: folders, hub ids, or names from 'openvse models'. NAME=MODEL names one in the figures."
    ),
]
Out: TypeAlias = Annotated[Path, typer.Option("--out", help="Folder for the figures and tables.")]
Overwrite: TypeAlias = Annotated[
    bool, typer.Option("--overwrite", help="Replace an earlier result of this analysis in --out.")
]
On: TypeAlias = Annotated[
    str, typer.Option("--on", help="A folder, a CSV file, or NAME:ROOT such as flickr8k:/data/f8k.")
]
Split: TypeAlias = Annotated[str, typer.Option(help="Split: train, validation, test or all.")]
Features: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        help="Feature store to read instead of images: one for all models, one a model, or a folder of stores."
    ),
]
Images: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Take only so many images, spread evenly over the split. Default: all."),
]
BatchSize: TypeAlias = Annotated[int, typer.Option(min=1, help="Images, sentences or questions at a time.")]


def begin(out: Path, name: str, *, overwrite: bool) -> None:
    """Refuse, before any work, what would fail at its end: a result that is there, or no matplotlib."""
    from openvse.analysis.result import refuse_written
    from openvse.output.figures import import_figure

    refuse_written(out, name, overwrite=overwrite)
    import_figure()


def finish(analysis: Analysis, out: Path, *, overwrite: bool, as_json: bool) -> None:
    """Write the files of an analysis, and print its summary or all of its tables as JSON."""
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import note, warn

    for warning in analysis.warnings:
        warn(warning)
    written = analysis.write(out, overwrite=overwrite)
    if as_json:
        tables = {part or analysis.name: table.to_json() for part, table in analysis.tables.items()}
        files = [str(path) for path in written]
        summary = analysis.summary.to_json()
        print_json(f"analyze {analysis.name}", {"summary": summary, "tables": tables, "files": files})
    else:
        typer.echo(analysis.summary.to_markdown())
    note(f"written: {', '.join(map(str, written))}")


@analyze_app.command()
def coefficients(
    models: Models,
    out: Out,
    size: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Size of a set; give it several times. Default: 10, 20, 36 and 49."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="The k of the k-max pooling shown beside.")] = 5,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learned pooling coefficients by set size, beside mean, max and k-max."""
    from openvse.analysis.coefficients import NAME, SIZES, analyze_coefficients
    from openvse.analysis.opening import open_towers

    begin(out, NAME, overwrite=overwrite)
    found = analyze_coefficients(open_towers(models, device), size or SIZES, k)
    finish(found, out, overwrite=overwrite, as_json=as_json)
