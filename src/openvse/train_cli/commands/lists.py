"""``openvse list``: the names that openvse knows, kind by kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from openvse.cli.app import app
from openvse.cli.options import Json, argument, print_json
from openvse.cli.progress import copyable
from openvse.errors import OpenVSEError
from openvse.train_cli.completion import complete_listed
from openvse.train_cli.listing import (
    described,
    first_line,
    recipe_facts,
    recipe_rows,
    recipes_by_use,
    shown_keys,
    terms_as_text,
)


@app.command("list", rich_help_panel="Train")
def list_names(
    kind: Annotated[
        Literal["recipes", "parts", "terms", "models", "data", "protocols"],
        argument(
            "recipes, parts of recipes, terms of the papers, models, data sets, or test protocols.", metavar="KIND"
        ),
    ],
    name: Annotated[
        str | None,
        argument(
            "A recipe (a name, the beginning of names, or a file), a part or a data set to show.",
            complete=complete_listed,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the names that openvse knows. With NAME, show the keys of a recipe, the options of a part, or a data set."""
    if name is not None and kind not in ("recipes", "parts", "data"):
        raise OpenVSEError(f"list {kind} {name}: {kind} have no pages of their own: leave {name} out")
    named = {"recipes": _recipes, "parts": _parts, "data": _data}
    values, lines = named[kind](name) if kind in named else _ALL[kind]()
    if as_json:
        print_json("list", {"kind": kind, "name": name, "listed": values})
    else:
        typer.echo(copyable("\n".join(lines)))


def _recipes(name: str | None) -> tuple[Any, Iterator[str]]:
    from openvse.specs.load import list_recipes
    from openvse.tasks.recipes import shown_recipe

    names = list_recipes(name or "")
    if name is None:
        return recipe_facts(names), recipes_by_use(names)
    if names and name not in [*names, *list_recipes()]:
        return recipe_facts(names), recipe_rows(names)
    tree = shown_recipe(name)
    return tree, shown_keys(name, names, tree)


def _parts(name: str | None) -> tuple[Any, Iterator[str]]:
    from openvse.tasks.front import registries

    if name is not None:
        lines = [*described(name)]
        return lines, iter(lines)
    names = {registry.kind: registry.names() for registry in registries()}
    return names, (f"{kind}: {', '.join(each)}" for kind, each in names.items())


def _data(name: str | None) -> tuple[Any, Iterator[str]]:
    from openvse.datasets import DATASETS
    from openvse.datasets.check import describe_data

    if name is not None:
        text = describe_data(name)
        return text, iter([text])
    titles = {
        each: facts.title if (facts := DATASETS.facts(each)) else first_line(DATASETS.loader(each)) for each in DATASETS
    }
    lines = [f"{each:<16}{title}" for each, title in titles.items()]
    return titles, iter([*lines, "What to download, and where to put it: openvse list data NAME"])


def _models() -> tuple[Any, Iterator[str]]:
    from openvse.conversion.weights import PUBLISHED
    from openvse.tasks.front import list_models

    here = [each for each in list_models() if each not in PUBLISHED]

    def lines() -> Iterator[str]:
        if here:
            yield from ("In this folder:", *(f"  {each}" for each in here), "")
        yield f"{'name':17}{'model':28}{'px':>3}{'weights':>8}{'width':>6}  languages"
        for name, model in PUBLISHED.items():
            size = f"{model.millions} M"
            yield f"{name:17}{model.what:28}{model.side:>3}{size:>8}{model.width:>6}  {model.languages}"
            yield f"{'':17}{model.source} ({model.licence})"
        yield "\nThe first use downloads a model from the Hugging Face hub and converts it once:"
        yield "  openvse index clip-b32 FOLDER && openvse search clip-b32 index 'a red bicycle'"

    return {each: {} for each in here} | {name: vars(model) for name, model in PUBLISHED.items()}, lines()


def _protocols() -> tuple[Any, Iterator[str]]:
    from openvse.evaluation.report import protocols

    def lines() -> Iterator[str]:
        for each in protocols().values():
            yield f"{each.name}: {each.title}"
            if each.code:
                yield f"  as in {each.code}"
            if each.annotations:
                yield f"  with --annotations: {each.annotations}"

    return {name: vars(each) for name, each in protocols().items()}, lines()


def _terms() -> tuple[Any, Iterator[str]]:
    from openvse.train_cli.listing import paper_terms

    head = [
        "Each term with its source, its parts, and settings of a recipe or commands.",
        "KEY=VALUE is also an argument of openvse train; quote it in a shell.\n",
    ]
    values = {subject: [vars(term) for term in terms] for subject, terms in paper_terms().items()}
    return values, iter([*head, *terms_as_text()])


_ALL = {"models": _models, "protocols": _protocols, "terms": _terms}
