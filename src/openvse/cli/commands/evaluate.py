"""``openvse evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Device


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A model folder (a run's best/) or a hub id.")],
    data: Annotated[
        str, typer.Argument(help="A folder, a CSV file, or NAME:ROOT such as flickr8k:/data/f8k.")
    ],
    split: Annotated[str, typer.Option(help="train, validation, test, or all.")] = "test",
    features: Annotated[
        Path | None, typer.Option(help="Feature store to read instead of the pictures.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for report.json and report.md.")] = None,
    folds: Annotated[int, typer.Option(min=1, help="Mean over this many equal folds (COCO 1K: 5).")] = 1,
    device: Device = "cpu",
) -> None:
    """Measure retrieval both ways: R@1/5/10, RSUM, MedR, MeanR, with confidence intervals."""
    from openvse.build import load_model
    from openvse.data import open_corpus
    from openvse.evaluation import embed_corpus
    from openvse.evaluation import evaluate as measure
    from openvse.features_store import FeatureStore

    loaded = load_model(model, device=device)
    corpus = open_corpus(data, require_images=features is None)
    chosen = corpus if split == "all" else corpus.split(split)
    store = None if features is None else FeatureStore.open(features, loaded.image.encoder.fingerprint)
    embedded = embed_corpus(loaded, chosen, store)
    report = measure(
        embedded.images,
        embedded.texts,
        embedded.corpus.relevance,
        loaded.similarity,
        name=chosen.name,
        model=loaded.fingerprint,
        folds=folds,
        problems=embedded.corpus.problems,
    )
    typer.echo(report.to_markdown())
    if out is not None:
        report.save(out)
        typer.echo(f"written: {out / 'report.json'}, {out / 'report.md'}", err=True)
