"""``openvse calibrate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import AllowOutside, BatchSize, Device, Json, On, Split, Threads
from openvse.errors import ModelError

if TYPE_CHECKING:
    from openvse.scoring import Calibration


@app.command(rich_help_panel="Search")
def calibrate(
    model: Annotated[
        str,
        typer.Argument(help="A model folder, the folder of a run, or a name that 'openvse models' lists."),
    ],
    on: On,
    split: Split = "validation",
    features: Annotated[Path | None, typer.Option(help="Feature store to read instead of images.")] = None,
    allow_outside: AllowOutside = False,
    batch_size: BatchSize = 128,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Fit the curve from scores to probabilities that search shows, and keep it in the model's folder.

    Training does this by itself, on its validation split. Give images that the model was not trained on.
    """
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import bar, note, warn
    from openvse.files import write_whole
    from openvse.model import TwoTower
    from openvse.retrieval.calibrate import calibrate_towers
    from openvse.scoring import CALIBRATION
    from openvse.tasks.load import load_as
    from openvse.training.kind import Request

    folder = folder_of(model)
    loaded = load_as(TwoTower, folder, device=device)
    with bar() as progress:
        request = Request(
            on,
            split,
            () if features is None else (features,),
            allow_outside=allow_outside,
            batch_size=batch_size,
            progress=progress.show,
        )
        curve, warnings = calibrate_towers(loaded, request)
    for warning in warnings:
        warn(warning)
    write_whole(folder / CALIBRATION, curve.to_json())
    if as_json:
        print_json("calibrate", {"folder": str(folder), **json.loads(curve.to_json())})
    else:
        print_curve(curve)
    note(f"written: {folder / CALIBRATION}")


def folder_of(model: str) -> Path:
    """Return the folder that keeps the curve of a model; raise ModelError if the model has none on this machine."""
    from openvse.conversion.convert import published_folder
    from openvse.tasks.load import find_model

    if Path(model).is_dir():
        return find_model(model, in_run=True)
    published = published_folder(model)
    if published is None:
        raise ModelError(
            f"{model} is no model folder, and the curve is kept in the folder: convert or download the model first"
        )
    return published


def print_curve(calibration: Calibration) -> None:
    """Print what a curve was fitted on, and which score stands for which precision."""
    from openvse.output.documents import percent
    from openvse.output.table import Table
    from openvse.scoring.calibration import PRECISIONS

    data = calibration.data
    losses = ", ".join(f"{method} {loss:.5f}" for method, loss in calibration.log_loss.items())
    typer.echo(
        f"{data.name}: {data.num_images:,} images, {data.num_texts:,} sentences, {data.num_pairs:,} relevant pairs\n"
        f"curve: {calibration.method} (held-out log loss: {losses})\n"
    )
    rows = []
    for precision in PRECISIONS:
        score = calibration.threshold(precision)
        stated = (
            ["out of reach", ""] if score is None else [f"{score:.4f}", percent(calibration.recall(score))]
        )
        rows.append([f"{precision:g}", *stated])
    typer.echo(Table(["precision", "score from", "relevant pairs found"], rows).to_markdown())
    typer.echo(
        f"\nof a search in {data.num_images:,} images; in a larger index, a precision needs a higher score"
    )
