"""``openvse export``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from openvse.cli.app import app
from openvse.cli.options import Json, ModelName, On, Split, Threads
from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.exporting import Exported


@app.command(rich_help_panel="Convert")
def export(
    model: ModelName,
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    format: Annotated[
        Literal["onnx", "sentence_transformers"],
        typer.Option(
            metavar="FORMAT",
            help="onnx: both towers, for 'openvse search --model OUT' and other runtimes without PyTorch. "
            "sentence_transformers: the text tower for that library.",
        ),
    ] = "onnx",
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Round the weights of the linear layers to 8 bits: smaller files, a little less exact.",
        ),
    ] = False,
    longest: Annotated[
        int,
        typer.Option(
            min=1, help="Largest number of stored features of an image (for a model of precomputed features)."
        ),
    ] = 200,
    on: On = "",
    split: Split = "validation",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Write a model for other runtimes, such as ONNX Runtime. It is compared with the model first.

    With --int8, --on names images with captions, on which its effect is measured.
    """
    from openvse.cli.progress import note, voice
    from openvse.datasets import open_corpus
    from openvse.exporting import export as run
    from openvse.tasks.load import load

    if on and not int8:
        raise OpenVSEError("--on measures the effect of --int8: give both, or leave --on out")
    corpus = None
    if on:
        whole = open_corpus(on, require_images=True, allow_outside=voice.allow_outside)
        corpus = whole if split == "all" else whole.split(split)
    loaded = load(model)
    note(f"exporting to {out}; this takes a minute for a large model")
    done = run(loaded, out, format=format, int8=int8, longest=longest, on=corpus)
    print_export(done, as_json=as_json)


def print_export(done: Exported, *, as_json: bool) -> None:
    """Print what was written and how near it is to the model, as text or as JSON."""
    from openvse.cli.json_output import print_json
    from openvse.output.table import Table

    if as_json:
        print_json("export", {**asdict(done), "folder": str(done.folder)})
        return
    typer.echo(f"{done.folder}: {done.format}, {done.bytes / 1e6:.1f} MB")
    rows = [
        [each.what, str(each.count), f"{each.largest:.1e}", f"{each.cosine:.6f}"] for each in done.differences
    ]
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
