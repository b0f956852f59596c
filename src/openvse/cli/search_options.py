"""The options of ``openvse search``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[MODEL] INDEX QUERY...",
        help="An index folder, and sentences or paths of images to find similar ones. The index remembers which "
        "model made it, and where that is; name it before the index if it is no longer there.",
    ),
]
SearchModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="The model, in place of MODEL: a model folder, or what 'openvse export' wrote, which is searched without "
        "PyTorch.",
    ),
]
ImageQueries = Annotated[
    list[Path] | None, typer.Option(help="An image to find similar ones; may be given several times.")
]
LikeItems = Annotated[
    list[str] | None,
    typer.Option(
        "--like",
        help="An item of the index (its path below the folder) to find others like it; may be repeated.",
    ),
]
WithImage = Annotated[
    Path | None, typer.Option("--with", help="An image to look for together with every sentence.")
]
ImageWeight = Annotated[
    float,
    typer.Option(
        "--with-weight", min=0, max=1, help="Weight w of the --with image; the sentence has the weight 1 - w."
    ),
]
Avoid = Annotated[
    list[str] | None, typer.Option(help="What the hits should not show; may be given several times.")
]
AvoidWeight = Annotated[
    float, typer.Option(min=0, help="Weight of each --avoid term, whose weighted score is subtracted.")
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        help="A condition on all hits, such as 'date >= 2024-05', 'path ~ holiday/*', 'size > 2MB', 'kind = clip', or "
        "a key of metadata.jsonl; may be given several times."
    ),
]
TopK = Annotated[int, typer.Option("--top-k", "-k", min=1, help="How many hits to list for each query.")]
Skip = Annotated[
    int, typer.Option(min=0, help="How many of the best hits to skip, for a later page of results.")
]
OnePerFile = Annotated[
    bool, typer.Option("--one-per-file", help="Of the segments of a clip, list only the best one.")
]
MinPrecision = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="The lowest probability of a hit, so that at least this share of them is expected to be relevant; see "
        "'openvse calibrate'.",
    ),
]
Expected = Annotated[
    float | None,
    typer.Option(
        help="How many of the images searched you expect to fit a sentence, for the probabilities; by default as many "
        "as in the data that these were fitted on."
    ),
]
MinScore = Annotated[float | None, typer.Option(help="List only hits with this score or more.")]
RerankFeatures = Annotated[
    Path | None, typer.Option(help="A feature store that the re-ranking model reads instead of the images.")
]
CheckIndex = Annotated[
    bool,
    typer.Option("--check", help="First compare the whole index with its checksums, and look for NaN."),
]
Html = Annotated[Path | None, typer.Option(help="Write a contact sheet that opens in a browser.")]
OpenPage = Annotated[bool, typer.Option("--open", help="Open the contact sheet in a browser.")]
Output = Annotated[
    Literal["table", "jsonl", "paths"] | None,
    typer.Option("--output", help="A table (the default), a line of JSON for each hit, or the paths alone."),
]
Null = Annotated[
    bool,
    typer.Option(
        "--null", "-0", help="End every path with a zero byte, for 'xargs -0'; implies --output paths."
    ),
]
SearchEngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="exact, for an exact search whatever the index has; by default the engine of the index.",
    ),
]
