"""``openvse evaluate``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    Annotations,
    BatchSize,
    Device,
    Every,
    Exchanged,
    Folds,
    Json,
    Models,
    On,
    ProtocolName,
    QueryBankSplit,
    Rerank,
    Reranking,
    Split,
    Stores,
    TextFeatures,
    Threads,
    few_first,
    option,
    print_json,
)
from openvse.cli.progress import bar, note, voice, warn
from openvse.errors import ModelError, OpenVSEError
from openvse.files import refuse_there, replacing_files, write_whole
from openvse.output.documents import percent
from openvse.output.table import Table
from openvse.train_cli.launching import leads, together

if TYPE_CHECKING:
    from openvse.model.base import Model
    from openvse.scoring.calibration import Calibration
    from openvse.training.kind import Evaluation

Reports: TypeAlias = Annotated[Path | None, option("Folder for report.json and report.md.")]
Calibrate: TypeAlias = Annotated[
    bool,
    option(
        "Also fit the calibration curve, by which search shows probabilities, and keep it in the model's folder. "
        "Give data that the model was not trained on.",
        "--calibrate",
    ),
]
Processes: TypeAlias = Annotated[int, option("Number of processes on this machine that share the work.", least=1)]

WRITTEN = ("report.json", "report.md", "predictions.json", "reliability.png")
"""The files in ``--out`` afterwards. The last two are for questions and for probabilities."""


@app.command(
    rich_help_panel="Explain",
    cls=few_first(
        "on",
        "split",
        "features",
        "out",
        "device",
        "as_json",
        panels={
            "For papers": ("protocol", "annotations", "folds", "every", "query_bank", "exchanged"),
            "Speed": ("batch_size", "processes", "threads"),
        },
    ),
)
def evaluate(
    models: Models,
    on: On,
    split: Split = "test",
    features: Stores = None,
    text_features: TextFeatures = None,
    out: Reports = None,
    rerank: Rerank = None,
    query_bank: QueryBankSplit = "",
    folds: Folds = 1,
    protocol: ProtocolName = "",
    annotations: Annotations = None,
    every: Every = False,
    exchanged: Exchanged = False,
    calibrate: Calibrate = False,
    batch_size: BatchSize = 128,
    processes: Processes = 1,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Measure retrieval in both directions or answer accuracy, with intervals. Several models are averaged."""
    from openvse.tasks import task_kind
    from openvse.tasks.runs import find_run
    from openvse.training.kind import Request

    if out is not None:
        refuse_there([out / name for name in WRITTEN], "choose another --out, or delete it first")
    again = Reranking.read(rerank or "")
    if again.features is not None:
        raise OpenVSEError("--rerank takes no features here: --features names the stores of all models")
    places = [find_run(name).model for name in (models if rerank is None else [*models, again.model])]
    curve_file = curve_of(places[0]) if calibrate else None
    with together(processes, device) as group, bar(shown=leads()) as progress:
        loaded, task = load_all(places, device)
        request = Request(
            on,
            split,
            tuple(features or ()),
            folds,
            text_features=text_features,
            rerank=rerank is not None,
            rerank_top=again.top,
            rerank_weight=again.weight,
            allow_outside=voice.allow_outside,
            batch_size=batch_size,
            progress=progress.show,
            exchanged=exchanged,
            every=every,
            protocol=protocol,
            annotations=annotations,
            processes=group,
            query_bank=query_bank,
            calibrate=calibrate,
            places=places,
        )
        evaluation = task_kind(task).evaluate(loaded, request)
    say(evaluation, {"task": task, "data": on, "split": split} if as_json else None)
    write(evaluation, out, curve_file)


def load_all(names: Sequence[str], device: str) -> tuple[list[Model], str]:
    """Return models of one task, and the task. Raise OpenVSEError if one cannot be loaded, or has another task."""
    from openvse.tasks.load import load

    loaded = [load(name, device=device) for name in names]
    task, *others = dict.fromkeys(model.task for model in loaded)
    if others:
        raise OpenVSEError(
            f"the models are for different tasks ({task}, {', '.join(others)}): evaluate models of one task together"
        )
    return loaded, task


def say(evaluation: Evaluation, asked: Mapping[str, object] | None) -> None:
    """Print an evaluation as a table, or as JSON with ``asked``. The first of several processes prints."""
    if not leads():
        return
    for warning in evaluation.warnings:
        warn(warning)
    if asked is not None:
        curve = evaluation.calibration
        fitted = {} if curve is None else {"calibration": json.loads(curve.to_json())}
        print_json("evaluate", {**asked, "report": json.loads(evaluation.to_json()), **fitted})
        return
    if table := evaluation.to_markdown():
        typer.echo(table)
    if evaluation.calibration is not None:
        typer.echo(curve_text(evaluation.calibration))


def write(evaluation: Evaluation, out: Path | None, curve_file: Path | None) -> None:
    """Write the files of an evaluation and its curve. The first of several processes writes."""
    if not leads():
        return
    written: list[Path] = []
    if out is not None:
        with replacing_files(out, WRITTEN[0]) as partial:
            written = [out / path.relative_to(partial) for path in evaluation.write(partial)]
    if curve_file is not None and evaluation.calibration is not None:
        write_whole(curve_file, evaluation.calibration.to_json())
        written.append(curve_file)
    if written:
        note(f"written: {', '.join(map(str, written))}")


def curve_of(model: str) -> Path:
    """Return the file of a model's calibration curve. Raise ModelError if it has no folder on this machine."""
    from openvse.conversion.convert import published_folder
    from openvse.scoring.calibration import CALIBRATION

    folder = Path(model) if Path(model).is_dir() else published_folder(model)
    if folder is None:
        raise ModelError(
            f"{model} is no model folder, and --calibrate keeps the curve in the folder: convert or download the model "
            f"first"
        )
    return folder / CALIBRATION


def curve_text(calibration: Calibration) -> str:
    """Return the data of a calibration curve, and a table of precisions with their scores."""
    from openvse.scoring.calibration import PRECISIONS

    data = calibration.data
    rows = []
    for precision in PRECISIONS:
        score = calibration.threshold(precision)
        found = "" if score is None else percent(calibration.recall(score))
        rows.append([f"{precision:g}", "out of reach" if score is None else f"{score:.4f}", found])
    table = Table(["precision", "score from", "relevant pairs found"], rows).to_markdown()
    return (
        f"\n## Calibration curve\n\nFitted to {data.num_pairs:,} relevant pairs of {data.name}.\n\n{table}\n\n"
        f"This holds for a search in {data.num_images:,} images. In a larger index, a precision needs a higher score."
    )
