"""``openvse encode``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    BatchSize,
    Json,
    ModelName,
    Overwrite,
    RunSettings,
    argument,
    option,
    print_json,
    with_settings,
)
from openvse.cli.progress import bar, counted, going_on, voice, warn
from openvse.media.names import escaped
from openvse.pipeline import tell_skipped

if TYPE_CHECKING:
    from openvse.encoding.run import EncodingReport


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
