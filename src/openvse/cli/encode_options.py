"""The options of ``openvse encode``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Records = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="A folder of images, at any depth; or a file that lists images or sentences: .txt with one a line, .csv, "
        ".tsv, .jsonl or .parquet with a column such as path or text, and perhaps id.",
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--out", help="A file NAME.npy or NAME.parquet; or a folder, which gets files for each shard."
    ),
]
Listed = Annotated[
    Literal["images", "texts"] | None,
    typer.Option("--kind", help="What a file lists. By default its columns, or its first line, tell."),
]
FolderFormat = Annotated[
    Literal["npy", "parquet"] | None,
    typer.Option("--format", help="Format of the files in a folder. Default: npy."),
]
NumberType = Annotated[
    Literal["float32", "float16"], typer.Option("--dtype", help="Number type of the embeddings.")
]
ShardSize = Annotated[
    int,
    typer.Option(
        min=1, help="How many records a shard has. An interruption costs at most the work on one shard."
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an output of other records or of another model.")
]
