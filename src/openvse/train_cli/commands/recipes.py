"""``openvse recipes``: the shipped recipes, and the parts that a recipe may name."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Json
from openvse.train_cli.completion import complete_part, complete_recipe


@app.command(rich_help_panel="Train")
def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A recipe whose keys and values to show; or the beginning of some, or a file, whose rows to list.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the shipped recipes by use. With NAME, show all keys of a recipe, or rows with their published figures."""
    from openvse.specs import list_recipes
    from openvse.train_cli.listing import recipe_facts, recipe_rows, recipes_by_use

    names = list_recipes(name or "")
    if name is None or (names and name not in [*names, *list_recipes()]):
        lines = recipes_by_use(names) if name is None else recipe_rows(names)
        typer.echo(json.dumps(recipe_facts(names), indent=2) if as_json else "\n".join(lines))
        return
    import yaml

    from openvse.specs import about
    from openvse.tasks.recipes import shown_recipe

    tree = shown_recipe(name)
    if as_json:
        typer.echo(json.dumps(tree, indent=2))
        return
    head = about(name)[0] + "".join(f"# Row: {each}\n" for each in names if each != name)
    typer.echo(head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=80), nl=False)


@app.command(rich_help_panel="Explain")
def protocols() -> None:
    """List the published test protocols that 'openvse evaluate --protocol' follows."""
    from openvse.evaluation.protocols import PROTOCOLS

    for each in PROTOCOLS.values():
        typer.echo(f"{each.name}: {each.title}")
        if each.code:
            typer.echo(f"  as in {each.code}")
        if each.annotations:
            typer.echo(f"  with --annotations: {each.annotations}")


@app.command(rich_help_panel="Train")
def parts(
    name: Annotated[
        str | None, typer.Argument(help="A part whose options to show.", autocompletion=complete_part)
    ] = None,
    terms: Annotated[
        bool,
        typer.Option(
            "--terms", help="List the terms of the papers instead, with the name that each has in openvse."
        ),
    ] = False,
) -> None:
    """List the parts that a recipe can name. With NAME, show the options of that part."""
    if terms:
        from openvse.tasks.terms import terms_as_text

        typer.echo("Each term with its source, its parts, and settings of a recipe or commands.")
        typer.echo("KEY=VALUE is also an argument of openvse train; quote it in a shell.\n")
        typer.echo(terms_as_text())
        return
    from openvse.train_cli.listing import described, registries

    for line in described(name) if name else (f"{r.kind}: {', '.join(r.names())}" for r in registries()):
        typer.echo(line)
