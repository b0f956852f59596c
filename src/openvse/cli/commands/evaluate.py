"""``openvse evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import AllowOutside, Device
from openvse.errors import OpenVSEError


@app.command()
def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(help="Model folders, hub ids or names of 'openvse models'; scores are averaged."),
    ],
    data: Annotated[
        str, typer.Argument(help="A folder, a CSV file, or NAME:ROOT such as flickr8k:/data/f8k.")
    ],
    split: Annotated[str, typer.Option(help="train, validation, test, or all.")] = "test",
    features: Annotated[
        list[Path] | None,
        typer.Option(
            help="Feature store to read instead of images: one for all models, one a model, or a folder of stores."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for report.json and report.md.")] = None,
    rerank: Annotated[
        str | None,
        typer.Option(
            help="A model that ranks the first proposals of each query again, such as score attention."
        ),
    ] = None,
    rerank_top: Annotated[int, typer.Option(min=1, help="Proposals of each query to rank again.")] = 20,
    rerank_weight: Annotated[
        float,
        typer.Option(min=0, max=1, help="Weight w of its score; that of the other models has 1 - w."),
    ] = 1.0,
    folds: Annotated[int, typer.Option(min=1, help="Average over so many equal folds (COCO 1K: 5).")] = 1,
    allow_outside: AllowOutside = False,
    device: Device = "cpu",
) -> None:
    """Measure retrieval both ways (R@1/5/10, RSUM, MedR, MeanR), or the accuracy of answers, with intervals."""
    from openvse.cli.progress import warn
    from openvse.tasks import kind_of
    from openvse.tasks.load import load
    from openvse.training.kind import Request

    loaded = [load(model, device=device) for model in (*models, *filter(None, [rerank]))]
    task, *others = dict.fromkeys(model.task for model in loaded)
    if others:
        raise OpenVSEError(
            f"the models are for different tasks ({task}, {', '.join(others)}): evaluate those of one task together"
        )
    request = Request(
        data,
        split,
        tuple(features or ()),
        folds,
        rerank=rerank is not None,
        rerank_top=rerank_top,
        rerank_weight=rerank_weight,
        allow_outside=allow_outside,
    )
    evaluation = kind_of(task).evaluate(loaded, request)
    for warning in evaluation.warnings:
        warn(warning)
    if table := evaluation.to_markdown():
        typer.echo(table)
    if out is not None:
        typer.echo(f"written: {', '.join(map(str, evaluation.write(out)))}", err=True)
