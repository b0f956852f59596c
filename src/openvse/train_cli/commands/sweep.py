"""``openvse sweep``."""

from __future__ import annotations

import shlex
from typing import Annotated, Literal, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import Json, Out, Overwrite
from openvse.cli.stopping import going_on
from openvse.train_cli.commands.analyze import begin, finish
from openvse.train_cli.completion import complete_override, complete_recipe

RESUME = "trained models are kept: run the same command again to continue"
Recipe: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="A recipe: a YAML file, or a name that 'openvse list recipes' lists.",
        autocompletion=complete_recipe,
    ),
]
Values: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE,VALUE...",
        help="Keys of the recipe with the values to train, such as image.aggregator.k=1,5,20. A key with one value "
        "is set for all.",
        autocompletion=complete_override,
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--setting",
        help="A value of several keys that change together, NAME:KEY=VALUE,KEY=VALUE. Can be given several times. "
        "Names LABEL=VALUE with one label make an axis of this label.",
    ),
]
Drawn: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        help="Metric to draw, such as rsum (default), i2t_r1, t2i_medr, or view_cosine, the similarity of views. "
        "Can be given several times.",
    ),
]
MeasuredOn: TypeAlias = Annotated[
    Literal["validation", "test"], typer.Option(help="Split on which to measure the best models.")
]


@app.command(rich_help_panel="Train")
@going_on(RESUME)
def sweep(
    recipe: Recipe,
    out: Out,
    overrides: Values = None,
    settings: Settings = None,
    seeds: Annotated[str, typer.Option(help="Seeds of each setting, with commas between: 0,1,2.")] = "0",
    split: MeasuredOn = "validation",
    metrics: Drawn = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a recipe with every combination of some values, and draw the results.

    A stopped sweep continues when the same command runs again.
    One number is drawn as a line, two keys as a heat map, anything else as a point for each setting.
    """
    from openvse.analysis.sweep import (
        NAME,
        Sweep,
        analyze_sweep,
        check_metrics,
        parse_axes,
        parse_seeds,
        run_sweep,
    )
    from openvse.cli.progress import bar, note, voice
    from openvse.train_cli.training_bar import TrainingBar

    begin(out, NAME, overwrite=overwrite)
    drawn = check_metrics(metrics or ())
    outside = ["data.allow_outside=true"] * voice.allow_outside
    shared, axes = parse_axes([*(overrides or ()), *outside], settings or ())
    with bar() as progress:
        asked = Sweep(recipe, shared, axes, parse_seeds(seeds), out / "runs", split)
        results = run_sweep(asked, TrainingBar(progress), progress.show)
    finish(analyze_sweep(asked, results, drawn), out, overwrite=overwrite, as_json=as_json, command="sweep")
    if len(results) > 1:
        note(f"next: openvse compare {shlex.quote(str(out / 'runs'))}/*")
