"""The options of ``openvse index``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

IndexModel = Annotated[
    str, typer.Argument(help="A model folder, a hub id, or a name that 'openvse models' lists.")
]
Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="FOLDER...",
        help="Folders of images, at any depth; or a text file with a sentence a line, to find captions by images.",
    ),
]
Out = Annotated[Path, typer.Option(help="The index folder.")]
Add = Annotated[bool, typer.Option("--add", help="Add the folders to those that the index already holds.")]
Forget = Annotated[
    list[Path] | None,
    typer.Option(help="A folder to remove from the index, with its items; may be given several times."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        help="A pattern of files or folders to skip, as in .gitignore; may be given several times, and is remembered. "
        "So is a file .openvseignore in a folder."
    ),
]
SegmentSeconds = Annotated[
    float | None,
    typer.Option(
        help="Cut clips into segments of so many seconds, each with its own place in the results; 0 keeps them whole. "
        "By default what the index was last given. Also for models of images, which see the middle frame."
    ),
]
NumberFormat = Annotated[
    Literal["float32", "float16"] | None,
    typer.Option(
        help="How a number is stored: float16 halves disk and memory. By default that of the index, and float32 for a "
        "new one."
    ),
]
Features = Annotated[
    Path | None,
    typer.Option(
        help="A feature store, read instead of images that have not changed since; by default that of the model's run."
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an index of another model or of another folder.")
]
Compact = Annotated[
    bool, typer.Option("--compact", help="Rewrite the files without what is no longer needed in them.")
]
CheckAll = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Compare the whole index with its checksums, before and after; what is damaged is embedded again. Of an "
        "approximate engine, say its recall, too.",
    ),
]
EngineOption = Annotated[
    Literal["exact", "int8", "qdrant_edge", "qdrant", "pgvector"] | None,
    typer.Option(
        "--engine",
        help="What finds the nearest embeddings: exact (the default for a new index), int8 or qdrant_edge in the index "
        "folder, or qdrant or pgvector on a server. The index remembers it.",
    ),
]
EngineUrl = Annotated[
    str | None,
    typer.Option(
        "--engine-url",
        help="The URL of the engine's server. Passwords and keys in it are used, and never written; the environment "
        "variable OPENVSE_ENGINE_URL may hold it, too.",
        show_default=False,
    ),
]
