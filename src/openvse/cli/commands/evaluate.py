"""``openvse evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Device
from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.model import TwoTower


@app.command()
def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(help="Model folders (a run's best/) or hub ids; the scores of several are averaged."),
    ],
    data: Annotated[
        str, typer.Argument(help="A folder, a CSV file, or NAME:ROOT such as flickr8k:/data/f8k.")
    ],
    split: Annotated[str, typer.Option(help="train, validation, test, or all.")] = "test",
    features: Annotated[
        list[Path] | None,
        typer.Option(
            help="Feature store to read instead of pictures: one for all models, one a model, or a folder of stores."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for report.json and report.md.")] = None,
    rerank: Annotated[
        str | None,
        typer.Option(
            help="A model that ranks the first proposals of each query again, such as score attention."
        ),
    ] = None,
    rerank_top: Annotated[int, typer.Option(min=1, help="How many proposals it ranks again.")] = 20,
    rerank_weight: Annotated[
        float,
        typer.Option(min=0, max=1, help="Weight of its score; the proposing models' has the rest of 1."),
    ] = 1.0,
    folds: Annotated[int, typer.Option(min=1, help="Mean over this many equal folds (COCO 1K: 5).")] = 1,
    device: Device = "cpu",
) -> None:
    """Measure retrieval both ways (R@1/5/10, RSUM, MedR, MeanR), or the accuracy of answers, with intervals."""
    from openvse.model import TwoTower
    from openvse.tasks.load import load

    found = [load(model, device=device) for model in (*models, *filter(None, [rerank]))]
    towers = [model for model in found if isinstance(model, TwoTower)]
    if len(towers) == len(found):
        again = (rerank_top, rerank_weight) if rerank else None
        _evaluate_towers(towers, data, split, features or [], out, folds, again)
        return
    from openvse.cli.answers import evaluate_answerer

    evaluate_answerer(found, data, split=split, features=features or [], out=out, folds=folds)


def _evaluate_towers(
    loaded: list[TwoTower],
    data: str,
    split: str,
    features: list[Path],
    out: Path | None,
    folds: int,
    again: tuple[int, float] | None,
) -> None:
    """Measure retrieval; with ``again`` (how many proposals, which weight) the last model ranks those of the others."""
    from openvse.cli.stores import open_store
    from openvse.datasets import open_corpus
    from openvse.evaluation import Reranker, embed_ensemble
    from openvse.evaluation import evaluate as measure

    paths = _one_each(features, len(loaded))
    corpus = open_corpus(data, require_images=not features)
    chosen = corpus if split == "all" else corpus.split(split)
    stores = [open_store(model.image.encoder, path) for model, path in zip(loaded, paths, strict=True)]
    embedded = embed_ensemble(loaded, chosen, stores)
    first, *others = embedded.members
    report = measure(
        first.images,
        first.texts,
        embedded.corpus.relevance,
        first.similarity,
        reranker=None if again is None else Reranker(others.pop(), *again),
        others=others,
        name=chosen.name,
        model=", ".join(model.fingerprint for model in loaded),
        folds=folds,
        published=_published(loaded, embedded.corpus.relevance.num_images, folds),
        problems=embedded.corpus.problems,
    )
    typer.echo(report.to_markdown())
    if out:
        report.save(out)
        typer.echo(f"written: {out / 'report.json'}, {out / 'report.md'}", err=True)


def _published(models: list[TwoTower], num_images: int, folds: int) -> dict[str, dict[str, float]]:
    """Return what the paper of the model's recipe says of a test set of this size; an ensemble follows no recipe."""
    from openvse.specs import Recipe, expect_task
    from openvse.tasks.recipes import parse_recipe

    if len(models) > 1:
        return {}
    return expect_task(parse_recipe(models[0].config), Recipe).published_for(num_images, folds)


def _one_each(stores: list[Path], num_models: int) -> list[Path | None]:
    """Give each model its store: its own, the one for all, or none."""
    if len(stores) not in (0, 1, num_models):
        raise OpenVSEError(
            f"--features is given {len(stores)} times for {num_models} model(s): give it once for all of them, "
            f"or once a model, in their order"
        )
    if len(stores) == 1:
        return [stores[0]] * num_models
    return [*stores] or [None] * num_models
