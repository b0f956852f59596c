"""The options of commands whose work several processes can share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from openvse.cli.options import use_threads
from openvse.errors import OpenVSEError
from openvse.pipeline import Workers

Processes: TypeAlias = Annotated[
    int,
    typer.Option(min=0, help="Number of processes that share the work, through Ray; 0 does it in this one."),
]
Cluster: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Address of a running Ray cluster, or 'auto', whose machines all see the same files. By default the "
        "processes are on this machine."
    ),
]
ThreadsOfEach: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        help="Number of CPU threads of each process. Default: chosen by PyTorch; 1 with --processes.",
    ),
]


def chosen_workers(processes: int, cluster: str | None, threads: int | None, device: str) -> Workers | None:
    """Return who shares the work; None if this process does it alone, with so many threads.

    Raises:
        OpenVSEError: a cluster is given, and no number of processes.
    """
    if processes:
        return Workers(processes, threads or 1, device, cluster)
    if cluster is not None:
        raise OpenVSEError("--cluster needs --processes, which says how many processes share the work")
    use_threads(threads)
    return None
