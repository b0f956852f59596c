"""``openvse recipes``: the shipped recipes, and the parts that a recipe may name."""

from __future__ import annotations

from typing import Annotated

import typer

from openvse.cli.app import app


@app.command()
def recipes() -> None:
    """List the shipped recipes."""
    from openvse.specs import list_recipes

    for name in list_recipes():
        typer.echo(name)


@app.command()
def parts(
    terms: Annotated[
        bool, typer.Option("--terms", help="The papers' terms instead, and what each of them is here.")
    ] = False,
) -> None:
    """List the parts that a recipe may name."""
    if terms:
        from openvse.tasks.terms import terms_as_text

        typer.echo("Each term with its source, its parts, and settings of a recipe or commands.")
        typer.echo("KEY=VALUE is also an argument of openvse train; quote it in a shell.\n")
        typer.echo(terms_as_text())
        return
    from openvse.aggregators import AGGREGATORS, GENERATORS, POSITIONS
    from openvse.backbones import BACKBONES
    from openvse.datasets import DATASETS
    from openvse.encoders import AUGMENTATIONS, GLOBAL_VECTORS, PROJECTIONS, TEXT_ENCODERS, WORD_SPLITTERS
    from openvse.fusion import FUSIONS
    from openvse.objectives import CRITERIA, MINERS, TERMS
    from openvse.similarities import SIMILARITIES

    images = (BACKBONES, PROJECTIONS, AUGMENTATIONS, GLOBAL_VECTORS)
    model = (
        *images,
        TEXT_ENCODERS,
        WORD_SPLITTERS,
        AGGREGATORS,
        GENERATORS,
        POSITIONS,
        FUSIONS,
        SIMILARITIES,
    )
    for registry in (*model, TERMS, MINERS, CRITERIA, DATASETS):
        typer.echo(f"{registry.kind}: {', '.join(registry.names())}")
