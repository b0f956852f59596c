"""``openvse evaluate``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    AllowOutside,
    Annotations,
    BatchSize,
    Device,
    Every,
    Exchanged,
    Folds,
    Json,
    ProtocolName,
    QueryBankSplit,
    Rerank,
    Reranking,
    Split,
    Stores,
    TextFeatures,
    Threads,
    read_query_bank,
)
from openvse.errors import OpenVSEError
from openvse.files import refuse_there
from openvse.train_cli.launching import leads, together

if TYPE_CHECKING:
    from openvse.model import Model
    from openvse.training.kind import Evaluation

Models: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        help="One or more models: model folders, hub ids, or names from 'openvse models'. The scores of several "
        "models are averaged."
    ),
]
Data: TypeAlias = Annotated[
    str, typer.Argument(help="The data: a folder, a CSV file, or NAME:ROOT such as flickr8k:/data/f8k.")
]
Out: TypeAlias = Annotated[
    Path | None, typer.Option(help="Folder in which report.json and report.md are written.")
]
Processes: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Number of processes on this machine that share the work.")
]

WRITTEN = ("report.json", "report.md", "predictions.json", "reliability.png")
"""What ``--out`` holds afterwards; the last two for questions and for probabilities."""


@app.command(rich_help_panel="Explain")
def evaluate(
    models: Models,
    data: Data,
    split: Split = "test",
    features: Stores = None,
    text_features: TextFeatures = None,
    out: Out = None,
    rerank: Rerank = None,
    query_bank: QueryBankSplit = "",
    folds: Folds = 1,
    protocol: ProtocolName = "",
    annotations: Annotations = None,
    every: Every = False,
    exchanged: Exchanged = False,
    allow_outside: AllowOutside = False,
    batch_size: BatchSize = 128,
    processes: Processes = 1,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Measure retrieval in both directions (R@1/5/10, RSUM, MedR, MeanR) or answer accuracy, with intervals."""
    from openvse.cli.progress import bar, note
    from openvse.tasks import kind_of
    from openvse.training.kind import Request

    if out is not None:
        refuse_there([out / name for name in WRITTEN], "choose another --out, or delete it first")
    again = None if rerank is None else Reranking.read(rerank)
    if again is not None and again.features is not None:
        raise OpenVSEError("--rerank takes no features here: --features names the stores of all models")
    second = [] if again is None else [again.model]
    with together(processes, device) as group, bar(shown=leads()) as progress:
        loaded, task = load_all([*models, *second], device)
        request = Request(
            data,
            split,
            tuple(features or ()),
            folds,
            text_features=text_features,
            rerank=again is not None,
            rerank_top=20 if again is None else again.top,
            rerank_weight=1.0 if again is None else again.weight,
            allow_outside=allow_outside,
            batch_size=batch_size,
            progress=progress.show,
            exchanged=exchanged,
            every=every,
            protocol=protocol,
            annotations=annotations,
            processes=group,
            query_bank=read_query_bank(query_bank),
            places=(*models, *second),
        )
        evaluation = kind_of(task).evaluate(loaded, request)
    if leads():
        say(evaluation, {"task": task, "data": data, "split": split} if as_json else None)
    if leads() and out is not None:
        note(f"written: {', '.join(map(str, evaluation.write(out)))}")


def load_all(names: Sequence[str], device: str) -> tuple[list[Model], str]:
    """Return models of one task, and the task; raise OpenVSEError if one cannot be loaded, or is for another task."""
    from openvse.tasks.load import load

    loaded = [load(name, device=device) for name in names]
    task, *others = dict.fromkeys(model.task for model in loaded)
    if others:
        raise OpenVSEError(
            f"the models are for different tasks ({task}, {', '.join(others)}): evaluate those of one task together"
        )
    return loaded, task


def say(evaluation: Evaluation, asked: Mapping[str, object] | None) -> None:
    """Print an evaluation as a table, or as JSON if ``asked`` is given; its warnings go to standard error."""
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import warn

    for warning in evaluation.warnings:
        warn(warning)
    if asked is not None:
        print_json("evaluate", {**asked, "report": json.loads(evaluation.to_json())})
    elif table := evaluation.to_markdown():
        typer.echo(table)
