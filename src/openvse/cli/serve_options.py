"""Options of ``openvse serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

_ACCESS, _LIMITS = "Who may ask", "Limits"

ServedIndex: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="INDEX_OR_URL",
        help="The folder of an index of images; or an engine that an index has filled: qdrant://HOST:6333, "
        "postgresql://USER@HOST/DATABASE, or the folder of a Qdrant Edge shard.",
        show_default=False,
    ),
]
ServedModel: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="The model of the index, or its export; by default the model that the index names. An engine needs it.",
        show_default=False,
    ),
]
ServedImages: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--images",
        help="With an engine: where the first of the indexed folders is on this machine.",
        show_default=False,
    ),
]
SecondModel: TypeAlias = Annotated[
    str | None, typer.Option(help="A second model, which can rank the first hits of a sentence again.")
]
RankedAgain: TypeAlias = Annotated[int, typer.Option(min=1, max=200, help="How many hits it ranks again.")]
AnswerModel: TypeAlias = Annotated[
    str | None, typer.Option(help="A model that answers questions about the images.")
]
Title: TypeAlias = Annotated[str, typer.Option(help="Heading of the page.")]
Examples: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--example",
        help="A sentence that the page suggests; by default captions. You can repeat this option.",
    ),
]
Host: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Address to listen on; the default is only reached from this machine.", rich_help_panel=_ACCESS
    ),
]
Port: TypeAlias = Annotated[
    int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.", rich_help_panel=_ACCESS)
]
Token: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="OPENVSE_TOKEN",
        show_envvar=True,
        show_default=False,
        help="A secret that every request has to show. Other users of this machine can see options, so rather set "
        "the variable.",
        rich_help_panel=_ACCESS,
    ),
]
AllowPublic: TypeAlias = Annotated[
    bool,
    typer.Option("--allow-public", help="Let other machines ask without a token.", rich_help_panel=_ACCESS),
]
Names: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        help="A further name by which clients address this machine, such as photos.local. You can repeat this option.",
        rich_help_panel=_ACCESS,
    ),
]
Proxies: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--proxy",
        help="Address of a proxy that says which client asks. You can repeat this option.",
        rich_help_panel=_ACCESS,
    ),
]
Rate: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0, help="Questions per second of one client, on average; 0 is no limit.", rich_help_panel=_LIMITS
    ),
]
MaxUpload: TypeAlias = Annotated[
    float, typer.Option(min=0.1, max=1000, help="Largest upload in MB.", rich_help_panel=_LIMITS)
]
Timeout: TypeAlias = Annotated[
    float, typer.Option(min=1, help="Seconds after which a question is given up.", rich_help_panel=_LIMITS)
]
Gather: TypeAlias = Annotated[
    int,
    typer.Option(
        min=1,
        max=1024,
        help="Most questions that one call of the model answers; 1 answers them one by one.",
        rich_help_panel=_LIMITS,
    ),
]
ThumbnailMemory: TypeAlias = Annotated[
    int,
    typer.Option("--thumbnails", min=1, help="Memory for small images in MB.", rich_help_panel=_LIMITS),
]
