"""Options that several commands take."""

from __future__ import annotations

from textwrap import shorten
from typing import Annotated, TypeAlias

import typer

from openvse.errors import OpenVSEError


def usable_device(name: str) -> str:
    """Return the name of a device on which this machine can compute.

    Raises:
        OpenVSEError: there is none of this name here.
    """
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        reason = shorten(str(error), width=80, placeholder=" ...")
        raise OpenVSEError(
            f"device {name!r} cannot be used here ({reason}): give cpu, cuda or mps"
        ) from error
    return name


AllowOutside: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-outside", help="Take images outside of the data's folder too: ../, absolute paths, links."
    ),
]

Device: TypeAlias = Annotated[
    str, typer.Option(help="Where to compute: cpu, cuda or mps.", callback=usable_device)
]
