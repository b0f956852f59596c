"""``openvse convert``: released checkpoints to model folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app


@app.command()
def convert(
    checkpoint: Annotated[Path, typer.Argument(help="What VSE-infinity, PVSE or VSE+2AD saved.")],
    out: Annotated[Path, typer.Argument(help="The model folder to write.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Recipe options that the file does not say, such as text.encoder.global_state=final."
        ),
    ] = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="The .json or .pkl of its vocabulary; for BERT a vocab.txt, or the folder or hub id of a tokenizer."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="The repository: vse_infinity, pvse or vse_2ad; recognised by its weights if not given."
        ),
    ] = None,
) -> None:
    """Turn a released checkpoint into a model folder with the same embeddings, without running what it contains."""
    from openvse.cli.progress import warn
    from openvse.conversion import convert as run

    done = run(checkpoint, out, vocabulary=vocabulary, repository=kind, overrides=overrides or ())
    for note in done.notes:
        warn(note)
    parameters = sum(weight.numel() for weight in done.model.parameters())
    typer.echo(f"{out}: {done.repository}, {parameters:,} parameters, fingerprint {done.model.fingerprint}")
