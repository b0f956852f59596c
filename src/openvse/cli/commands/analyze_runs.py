"""The analyses that train: ``openvse analyze suspicious``, and the sweeps of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from openvse.cli.commands.analyze import On, Out, Overwrite, Split, analyze_app, begin, finish
from openvse.cli.commands.train import Overrides
from openvse.cli.completion import complete_recipe
from openvse.cli.options import AllowOutside, Json, Quiet, Threads
from openvse.cli.stopping import going_on
from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.analysis.stores import OnExtraction
    from openvse.analysis.sweep import Setting, Swept
    from openvse.types import OnProgress

Recipe = Annotated[
    str,
    typer.Argument(
        help="A recipe: a YAML file, or a name that 'openvse recipes' lists.", autocompletion=complete_recipe
    ),
]
_KEPT = "what is trained is kept; run the same command again to continue"
MeasuredOn = Annotated[
    Literal["validation", "test"],
    typer.Option("--split", help="Split on which the best models are measured."),
]
Seeds = Annotated[str, typer.Option(help="Seeds of each setting, with commas between: 0,1,2.")]


@analyze_app.command()
@going_on(_KEPT)
def suspicious(
    recipe: Recipe,
    on: On,
    out: Out,
    overrides: Overrides = None,
    split: Split = "train",
    images: Annotated[
        int | None, typer.Option(min=1, help="Examine only so many images, spread evenly.")
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Number of parts; a model is trained without each.")] = 3,
    count: Annotated[int, typer.Option(min=1, help="Captions on the page.")] = 100,
    swap: Annotated[
        float,
        typer.Option(
            min=0, max=0.5, help="Check: exchange this share of the captions, and measure precision."
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds and of --swap.")] = 0,
    allow_outside: AllowOutside = False,
    overwrite: Overwrite = False,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Training captions that models, trained without them, find far from their image.

    RECIPE trains one model without each fold; data.features and data.text_features can name stores.
    """
    from openvse.analysis.folds import Plan, cut_folds, score_folds, swap_captions
    from openvse.analysis.opening import open_split
    from openvse.analysis.suspicious import NAME, analyze_suspicious
    from openvse.cli.progress import TrainingBar, bar
    from openvse.training.kind import Request

    begin(out, NAME, overwrite=overwrite)
    corpus = open_split(Request(on, split, allow_outside=allow_outside), images)
    exchanged = None
    if swap:
        corpus, exchanged = swap_captions(corpus, swap, seed)
    runs = out / ("folds_swapped" if swap else "folds")
    plan = Plan(recipe, tuple(overrides or ()), corpus, cut_folds(corpus, folds, seed), runs)
    with bar() as progress:
        scores = score_folds(plan, TrainingBar(progress), extraction_shown(progress.show))
    found = analyze_suspicious(corpus, scores, count=count, exchanged=exchanged)
    finish(found, out, overwrite=overwrite, as_json=as_json)


@analyze_app.command("k-max-grid")
@going_on(_KEPT)
def k_max_grid(
    recipe: Recipe,
    out: Out,
    overrides: Overrides = None,
    image_k: Annotated[str, typer.Option(help="k of the images, with commas between.")] = "1,2,5,10,20",
    text_k: Annotated[str, typer.Option(help="k of the texts, with commas between.")] = "1,2,5,10,20",
    seeds: Seeds = "0",
    split: MeasuredOn = "validation",
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train k-max pooling with each pair of k, and draw a heat map of RSUM.

    A sweep that was stopped goes on when the same command runs again.
    """
    from openvse.analysis.sweep_figures import GRID, analyze_grid, grid_settings, parse_counts

    begin(out, GRID, overwrite=overwrite)
    settings = grid_settings(parse_counts(image_k, "--image-k"), parse_counts(text_k, "--text-k"))
    found = sweep_all(recipe, overrides, settings, seeds, out / "runs", split)
    finish(analyze_grid(found, split), out, overwrite=overwrite, as_json=as_json)


@analyze_app.command("num-views")
@going_on(_KEPT)
def num_views(
    recipe: Recipe,
    out: Out,
    overrides: Overrides = None,
    values: Annotated[str, typer.Option(help="Numbers of views, with commas between.")] = "1,2,3,4,5",
    seeds: Seeds = "0",
    split: MeasuredOn = "validation",
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train with each number of views K, and draw RSUM over K.

    RECIPE has multi_view images, such as mv_vse/flickr8k_grids_cpu.
    """
    from openvse.analysis.sweep_figures import VIEWS, analyze_line, parse_counts, view_settings

    begin(out, VIEWS, overwrite=overwrite)
    settings = view_settings(parse_counts(values, "--values"))
    found = sweep_all(recipe, overrides, settings, seeds, out / "runs", split)
    finish(analyze_line(VIEWS, found, "number of views K", split), out, overwrite=overwrite, as_json=as_json)


@analyze_app.command("view-weight")
@going_on(_KEPT)
def view_weight(
    recipe: Recipe,
    out: Out,
    overrides: Overrides = None,
    values: Annotated[str, typer.Option(help="Weights lambda, with commas between.")] = "0,0.3,0.5,0.7,0.9,1",
    seeds: Seeds = "0",
    split: MeasuredOn = "validation",
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train with each weight lambda; draw RSUM and the similarity of views.

    RECIPE has the terms ranking and bound of MV-VSE.
    """
    from openvse.analysis.sweep_figures import WEIGHT, analyze_line, parse_weights, weight_settings

    begin(out, WEIGHT, overwrite=overwrite)
    check_terms(recipe, overrides)
    settings = weight_settings(parse_weights(values, "--values"))
    found = sweep_all(recipe, overrides, settings, seeds, out / "runs", split)
    finish(analyze_line(WEIGHT, found, "lambda", split), out, overwrite=overwrite, as_json=as_json)


@analyze_app.command("view-ablation")
@going_on(_KEPT)
def view_ablation(
    recipe: Recipe,
    out: Out,
    overrides: Overrides = None,
    seeds: Seeds = "0",
    split: MeasuredOn = "validation",
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train MV-VSE's ablation: Tri, Max, Avg, Up and the full objective.

    RECIPE has the terms ranking and bound of MV-VSE.
    """
    from openvse.analysis.sweep_figures import ABLATION, ablation_settings, analyze_ablation

    begin(out, ABLATION, overwrite=overwrite)
    check_terms(recipe, overrides)
    found = sweep_all(recipe, overrides, ablation_settings(), seeds, out / "runs", split)
    finish(analyze_ablation(found, split), out, overwrite=overwrite, as_json=as_json)


def check_terms(recipe: str, overrides: Sequence[str] | None) -> None:
    """Refuse a recipe without the two terms whose weights a sweep sets."""
    from openvse.analysis.stores import retrieval_recipe

    there = retrieval_recipe(recipe, overrides or ()).to_dict().get("objective", {})
    if missing := [term for term in ("ranking", "bound") if term not in there]:
        raise OpenVSEError(
            f"recipe {recipe} has no term {' and no term '.join(missing)} in its objective: name a recipe of MV-VSE, "
            f"such as mv_vse/flickr8k_grids_cpu"
        )


def sweep_all(
    recipe: str,
    overrides: Sequence[str] | None,
    settings: Sequence[Setting],
    seeds: str,
    runs: Path,
    split: str,
) -> list[Swept]:
    """Run a sweep with progress on the terminal."""
    from openvse.analysis.sweep import Sweep, run_sweep
    from openvse.analysis.sweep_figures import parse_seeds
    from openvse.cli.progress import TrainingBar, bar

    numbers = tuple(parse_seeds(seeds, "--seeds"))
    with bar() as progress:
        sweep = Sweep(
            recipe,
            tuple(overrides or ()),
            settings,
            numbers,
            runs,
            split,
            TrainingBar(progress),
            extraction_shown(progress.show),
        )
        return run_sweep(sweep, progress.show)


def extraction_shown(show: OnProgress) -> OnExtraction:
    """Return a function that shows how far an extraction has come."""
    return lambda state: show(f"extracting {state.unit}", state.done, state.total)
