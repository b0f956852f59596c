"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Annotated, TypeAlias

import typer

from openvse.errors import OpenVSEError


def usable_device(name: str | None) -> str | None:
    """Return the name of a device on which this machine can compute; ``auto`` names the fastest there is.

    Raises:
        OpenVSEError: there is none of this name here.
    """
    if name is None:
        return None
    import torch

    if name == "auto":
        fastest = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "cpu" if fastest is None else fastest.type
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        reason = shorten(str(error), width=80, placeholder=" ...")
        raise OpenVSEError(
            f"device {name!r} cannot be used here ({reason}): give auto, cpu, cuda or mps"
        ) from error
    return name


def use_threads(count: int | None) -> int | None:
    """Let PyTorch compute with so many threads of the CPU; None leaves its choice."""
    if count is not None:
        import torch

        torch.set_num_threads(count)
    return count


def be_quiet(quiet: bool) -> bool:
    """Keep the command to results, warnings and errors, or let it speak."""
    from openvse.cli.progress import voice

    voice.quiet = quiet
    return quiet


AllowOutside: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-outside", help="Take images outside of the data's folder too: ../, absolute paths, links."
    ),
]

Device: TypeAlias = Annotated[
    str, typer.Option(help="Where to compute: auto, cpu, cuda or mps.", callback=usable_device)
]
RunDevice: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Where to compute: auto, cpu, cuda or mps; by default training.device of the recipe.",
        callback=usable_device,
    ),
]
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Threads of the CPU; by default PyTorch's choice.", callback=use_threads),
]
MinPrecision: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Leave out images that are less probable than this, so that at least this share of the rest is expected "
        "to be relevant; the model must know probabilities, see 'openvse calibrate'.",
    ),
]
Expected: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="How many images of the index you expect to fit a sentence, for the probabilities; by default as many as "
        "in the data that these were fitted on."
    ),
]
Rerank: TypeAlias = Annotated[
    str | None,
    typer.Option(help="A model that ranks the first proposals of each query again, such as score attention."),
]
RerankWeight: TypeAlias = Annotated[
    float, typer.Option(min=0, max=1, help="Weight w of its score; the score of the index has 1 - w.")
]
RerankFeatures: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="A feature store that the re-ranking model reads instead of the images."),
]
Quiet: TypeAlias = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Neither progress nor notes on standard error.", callback=be_quiet),
]
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON document, and nothing else.")
]
