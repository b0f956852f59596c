"""``openvse convert``, which makes model folders of published checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app


@app.command(rich_help_panel="Convert")
def convert(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="The checkpoint: a file that VSE-infinity, PVSE or VSE+2AD saved; or a dual encoder such as CLIP or "
            "SigLIP as a hub id, a folder with its files, or a name from 'openvse list models'."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The model folder to write.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings that the checkpoint does not contain, each as KEY=VALUE, such as "
            "text.encoder.global_state=final."
        ),
    ] = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="Vocabulary of the checkpoint: a .json or .pkl file; for BERT a vocab.txt, or the folder or hub id "
            "of a tokenizer. Dual encoders do not need this option."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Repository that the checkpoint comes from: vse_infinity, pvse, vse_2ad or esa. Default: recognised "
            "by the weights."
        ),
    ] = None,
) -> None:
    """Convert a published checkpoint to a model folder with the same embeddings. No code in the file is run."""
    from openvse.cli.progress import warn
    from openvse.conversion import convert as run

    done = run(checkpoint, out, vocabulary=vocabulary, repository=kind, overrides=overrides or ())
    for note in done.notes:
        warn(note)
    parameters = sum(weight.numel() for weight in done.model.parameters())
    typer.echo(f"{out}: {done.repository}, {parameters:,} parameters, fingerprint {done.model.fingerprint}")
