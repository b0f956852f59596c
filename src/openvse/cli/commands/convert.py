"""``openvse convert``: published checkpoints to model folders; ``openvse models``: good starts by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app


@app.command()
def convert(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="What VSE-infinity, PVSE or VSE+2AD saved; or a dual encoder such as CLIP or SigLIP: a hub id, a "
            "folder with its files, or a name that 'openvse models' lists."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The model folder to write.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Options that the file does not say, such as text.encoder.global_state=final."),
    ] = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="The .json or .pkl of its vocabulary; for BERT a vocab.txt, or the folder or hub id of a tokenizer. "
            "A dual encoder brings its own."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="The repository: vse_infinity, pvse or vse_2ad; recognised by its weights if not given."
        ),
    ] = None,
) -> None:
    """Turn a published checkpoint into a model folder with the same embeddings, without running what it contains."""
    from openvse.cli.progress import warn
    from openvse.conversion import convert as run

    done = run(checkpoint, out, vocabulary=vocabulary, repository=kind, overrides=overrides or ())
    for note in done.notes:
        warn(note)
    parameters = sum(weight.numel() for weight in done.model.parameters())
    typer.echo(f"{out}: {done.repository}, {parameters:,} parameters, fingerprint {done.model.fingerprint}")


@app.command()
def models() -> None:
    """List published models that are good starts; every command takes these names in place of a model folder."""
    from openvse.conversion.published import PUBLISHED

    typer.echo(f"{'name':17}{'model':28}{'px':>3}{'weights':>8}{'width':>6}  languages")
    for name, model in PUBLISHED.items():
        size = f"{model.millions} M"
        typer.echo(f"{name:17}{model.what:28}{model.side:>3}{size:>8}{model.width:>6}  {model.languages}")
        typer.echo(f"{'':17}{model.source} ({model.licence})")
    typer.echo("\nThe first use fetches a model from the Hugging Face hub and converts it once:")
    typer.echo("  openvse index clip-b32 FOLDER && openvse search clip-b32 index 'a red bicycle'")
