"""``openvse encode``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from openvse.cli.app import app
from openvse.cli.options import Device, Json, Quiet
from openvse.cli.stopping import going_on
from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.encoding import EncodingReport

_FEW = 10  # records that cannot be used and are named one by one


@app.command()
@going_on("what was encoded is kept; run the same command again to continue")
def encode(
    model: Annotated[
        str, typer.Argument(help="A model folder, a hub id, or a name that 'openvse models' lists.")
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder of images, at any depth; or a file that lists images or sentences: .txt with one a line, "
            ".csv, .tsv, .jsonl or .parquet with a column such as path or text, and perhaps id."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="A file NAME.npy or NAME.parquet; or a folder, which gets files for each shard."),
    ],
    kind: Annotated[
        Literal["images", "texts"] | None,
        typer.Option(help="What a file lists. By default its columns, or its first line, tell."),
    ] = None,
    form: Annotated[
        Literal["npy", "parquet"] | None,
        typer.Option("--format", help="Format of the files in a folder. Default: npy."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16"], typer.Option(help="Number type of the embeddings.")
    ] = "float32",
    batch_size: Annotated[
        int, typer.Option(min=1, help="How many images or sentences are embedded at a time.")
    ] = 64,
    shard_size: Annotated[
        int,
        typer.Option(
            min=1, help="How many records a shard has. An interruption costs at most the work on one shard."
        ),
    ] = 1024,
    workers: Annotated[
        int,
        typer.Option(min=0, help="How many processes encode, through Ray; 0 encodes in this process."),
    ] = 0,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Address of a running Ray cluster, or 'auto', whose machines all see the model, the data and --out. "
            "By default the workers are on this machine."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an output of other records or of another model.")
    ] = False,
    device: Device = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of CPU threads of each process. Default: chosen by PyTorch; 1 with workers."
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write embeddings of images or sentences, with their ids, for other programs; goes on after a stop."""
    from openvse.cli.progress import bar, counted
    from openvse.encoding import encode as encode_data

    if cluster is not None and not workers:
        raise OpenVSEError("--cluster needs --workers, which says how many processes encode")
    with bar() as progress:
        show = counted(progress, "encoding", "items")
        report = encode_data(
            model,
            data,
            out,
            kind=kind,
            form=form,
            dtype=dtype,
            batch_size=batch_size,
            shard_size=shard_size,
            workers=workers,
            cluster=cluster,
            device=device,
            threads=threads,
            overwrite=overwrite,
            progress=lambda state: show(state.done, state.total, state.per_s),
        )
    print_encoding(report, as_json=as_json)


def print_encoding(report: EncodingReport, *, as_json: bool) -> None:
    """Print what was encoded and what was left out, as a line or as JSON."""
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import warn
    from openvse.media.names import escaped

    for item, reason in report.failed[:_FEW]:
        warn(f"left out {escaped(item)}: {escaped(reason)}")
    if len(report.failed) > _FEW:
        warn(f"left out {len(report.failed) - _FEW:,} more, which the output's .json names")
    if report.left_out:
        warn(report.left_out.describe())
    if as_json:
        result = {
            "out": str(report.out),
            "kind": report.kind,
            "count": report.count,
            "num_embeddings": report.num_embeddings,
            "dim": report.dim,
            "kept": report.kept,
            "unreadable": len(report.failed),
            "failed": [{"id": item, "reason": reason} for item, reason in report.failed],
            "left_out": {
                kind: [str(path) for path in paths] for kind, paths in report.left_out.files.items()
            },
        }
        print_json("encode", result)
        return
    several = f"{report.num_embeddings} x " if report.num_embeddings > 1 else ""
    kept = f", {report.kept:,} of an earlier run" if report.kept else ""
    typer.echo(
        f"{escaped(report.out)}: {report.count:,} {report.kind}, {several}{report.dim} numbers each "
        f"({len(report.failed):,} left out{kept})"
    )
