"""``openvse convert``, ``openvse export`` and ``openvse blend``, which make model folders and exports of models."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from openvse.cli.app import app
from openvse.cli.options import Device, Json, ModelName, On, Out, Split, Threads, argument, option, print_json
from openvse.cli.progress import bar, note, voice, warn
from openvse.errors import OpenVSEError
from openvse.files import refuse_there
from openvse.output.table import Table

if TYPE_CHECKING:
    from openvse.exporting.write import Exported


@app.command(rich_help_panel="Convert")
def convert(
    checkpoint: Annotated[
        str,
        argument(
            "The checkpoint: a file that VSE-infinity, PVSE or VSE+2AD saved, or a dual encoder such as CLIP or "
            "SigLIP as a hub id, a folder with its files, or a name from 'openvse list models'."
        ),
    ],
    out: Annotated[Path, argument("The model folder to write.")],
    overrides: Annotated[
        list[str] | None,
        argument(
            "Settings that the checkpoint does not contain, each as KEY=VALUE, such as text.encoder.global_state=final."
        ),
    ] = None,
    vocabulary: Annotated[
        str | None,
        option(
            "Vocabulary of the checkpoint: a .json or .pkl file, or for BERT a vocab.txt, or the folder or hub id "
            "of a tokenizer. Dual encoders do not need this option."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        option("Repository of the checkpoint: vse_infinity, pvse, vse_2ad or esa. Default: recognised by the weights."),
    ] = None,
) -> None:
    """Convert a published checkpoint to a model folder with the same embeddings, without running code in the file."""
    from openvse.conversion.convert import convert as run

    done = run(checkpoint, out, vocabulary=vocabulary, repository=kind, overrides=overrides or ())
    for each in done.notes:
        warn(each)
    parameters = sum(weight.numel() for weight in done.model.parameters())
    typer.echo(f"{out}: {done.repository}, {parameters:,} parameters, fingerprint {done.model.fingerprint}")


@app.command(rich_help_panel="Convert")
def export(
    model: ModelName,
    out: Annotated[Path, argument("The folder to write.")],
    format: Annotated[
        Literal["onnx", "sentence_transformers"],
        option(
            "onnx: both towers, for 'openvse search --model OUT' and other runtimes without PyTorch. "
            "sentence_transformers: the text tower for that library.",
            metavar="FORMAT",
        ),
    ] = "onnx",
    int8: Annotated[
        bool,
        option(
            "Round the weights of the linear layers to 8 bits. The files are smaller and a little less exact.", "--int8"
        ),
    ] = False,
    longest: Annotated[
        int, option("Largest number of stored features of an image (for a model of precomputed features).", least=1)
    ] = 200,
    on: On = "",
    split: Split = "validation",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Write a model for other runtimes, such as ONNX Runtime, after a comparison with the model.

    With --int8, --on names images with captions to measure its effect.
    """
    from openvse.datasets import open_corpus
    from openvse.exporting.write import export as run
    from openvse.tasks.load import load

    if on and not int8:
        raise OpenVSEError("--on measures the effect of --int8: give both, or leave --on out")
    corpus = None
    if on:
        whole = open_corpus(on, require_images=True, allow_outside=voice.allow_outside)
        corpus = whole if split == "all" else whole.split(split)
    loaded = load(model)
    note(f"exporting to {out}, which takes a minute for a large model")
    with bar() as display:
        show = partial(display.show, "exporting")
        done = run(loaded, out, format=format, int8=int8, longest=longest, on=corpus, progress=show)
    print_export(done, as_json=as_json)


def print_export(done: Exported, *, as_json: bool) -> None:
    """Print the written files and their difference from the model, as text or as JSON."""
    if as_json:
        print_json("export", {**asdict(done), "folder": str(done.folder)})
        return
    typer.echo(f"{done.folder}: {done.format}, {done.bytes / 1e6:.1f} MB")
    rows = [[each.what, str(each.count), f"{each.largest:.1e}", f"{each.cosine:.6f}"] for each in done.differences]
    typer.echo(Table(["compared", "items", "largest difference", "lowest cosine"], rows).to_markdown())
    if done.effect is not None:
        effect = done.effect
        typer.echo(f"\n{effect.name}: {effect.num_images:,} images, {effect.num_texts:,} sentences")
        names = list(effect.before)
        figures = [
            [name, *(f"{values[key]:.1f}" for key in names)]
            for name, values in (("float32", effect.before), ("int8", effect.after))
        ]
        typer.echo(Table(["", *names], figures).to_markdown())


@app.command(rich_help_panel="Convert")
def blend(
    first: Annotated[
        str, argument("The first model: a model folder or a hub id, such as the model that a run started from.")
    ],
    second: Annotated[str, argument("A second model with the same parts, such as the folder best/ of the run.")],
    on: On,
    out: Out,
    features: Annotated[
        Path | None, option("Feature store to read instead of the images, or a folder of stores.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Average the weights of two models with the same parts, at the share that is best on validation."""
    from openvse.model.base import CONFIG, WEIGHTS
    from openvse.tasks.blend import blend as run
    from openvse.tasks.load import load
    from openvse.training.kind import Request

    refuse_there([out / CONFIG, out / WEIGHTS], "choose another --out, or delete it first")
    request = Request(on, "validation", () if features is None else (features,), allow_outside=voice.allow_outside)
    one, other = (load(name, device=device) for name in (first, second))
    done = run(one, other, request)
    for line in done.warnings:
        warn(line)
    typer.echo(f"share of {second}   validation {done.metric}")
    for share, score in done.scores:
        typer.echo(f"{share:5.2f}  {score:6.1f}{'  best' if share == done.share else ''}")
    done.model.save(out)
    if done.share in (0.0, 1.0):
        typer.echo(f"no average is better than {(first, second)[int(done.share)]}, so {out} is a copy of it", err=True)
    typer.echo(out)
