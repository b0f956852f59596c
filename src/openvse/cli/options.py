"""Options that several commands take."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Literal, TypeAlias

import typer

from openvse.errors import OpenVSEError


def usable_device(name: str | None) -> str | None:
    """Return the name of a device on which this machine can compute; ``auto`` becomes the fastest one.

    Raises:
        OpenVSEError: this machine has no device of this name, or cannot use it.
    """
    if name is None or name == "cpu":
        return name
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
    """Set the number of CPU threads that PyTorch uses; None keeps PyTorch's own choice."""
    if count is not None and find_spec("torch") is not None:
        import torch

        torch.set_num_threads(count)
    return count


def be_quiet(quiet: bool) -> bool:
    """Set whether the command leaves out progress and notes, so that it prints only results, warnings and errors."""
    from openvse.cli.progress import voice

    voice.quiet = quiet
    return quiet


AllowOutside: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-outside",
        help="Also use images outside of the data's folder, which ../, an absolute path or a link leads to; without "
        "this option they are refused.",
    ),
]

Device: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Device to compute on: cpu, cuda, mps, or auto for the fastest one.", callback=usable_device
    ),
]
RunDevice: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Device to compute on: cpu, cuda, mps, or auto for the fastest one. Default: training.device of the "
        "recipe.",
        callback=usable_device,
    ),
]
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Number of CPU threads. Default: chosen by PyTorch.", callback=use_threads),
]
StartModel: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--start",
        help="Model to start from: the folder of a run, a model folder, a hub id, or a name from 'openvse models'.",
    ),
]
Rerank: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="A second model that re-ranks the best results of each query, such as a model with score attention: a "
        "model folder, a hub id, or a name from 'openvse models'."
    ),
]
RerankTop: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Number of results of each query that --rerank re-ranks.")
]
RerankWeight: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Weight w of the --rerank model's score; the score of the first ranking has weight 1 - w.",
    ),
]
Store: TypeAlias = Annotated[
    Path, typer.Argument(help="The feature store: a folder that is created, or to which features are added.")
]
Stored: TypeAlias = Annotated[
    Literal["float16", "float32"], typer.Option(help="Number type of the stored values.")
]
TextFeatures: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Store of token states ('openvse extract' of a text model), or a folder of stores, to read instead of "
        "running a frozen text model. Models without one read the sentences."
    ),
]
Quiet: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Hide progress and notes; warnings and errors are still shown.",
        callback=be_quiet,
    ),
]
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON document instead of text.")
]
Exchanged: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--exchanged", help="Also answer each question about another image, as a control (only questions)."
    ),
]
Annotations: TypeAlias = Annotated[
    Path | None, typer.Option(help="Folder with the files that --protocol cxc or eccv_caption reads.")
]
Every: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--every", help="Also measure mAP@R, R-Precision, nDCG@10 and MRR, from all relevant items."
    ),
]
ProtocolName: TypeAlias = Annotated[
    str, typer.Option(help="Published protocol to follow, such as coco_1k; 'openvse protocols' lists them.")
]
On: TypeAlias = Annotated[
    str, typer.Option("--on", help="The data: a folder, a CSV file, or NAME:ROOT such as flickr8k:/data/f8k.")
]
Split: TypeAlias = Annotated[str, typer.Option(help="Split: train, validation, test or all.")]
Stores: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--features",
        help="Feature store to read instead of images: one for all models, one a model, or a folder of stores.",
    ),
]
Folds: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Number of equal folds over which the metrics are averaged (COCO 1K: 5).")
]
BatchSize: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Number of images, sentences or questions in a batch.")
]
