"""``openvse index`` and ``openvse search``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Device
from openvse.cli.stopping import going_on
from openvse.errors import OpenVSEError
from openvse.files import write_page

if TYPE_CHECKING:
    from openvse.search import HitReranker


@app.command()
@going_on("what was embedded is kept; run the same command again to go on")
def index(
    model: Annotated[str, typer.Argument(help="A model folder or a hub id.")],
    folder: Annotated[Path, typer.Argument(help="A folder of images, at any depth.")],
    out: Annotated[Path, typer.Option(help="The index folder.")] = Path("index"),
    batch_size: Annotated[int, typer.Option(min=1, help="How many images are embedded at a time.")] = 64,
    features: Annotated[
        Path | None,
        typer.Option(
            help="A feature store, read instead of images that have not changed since; by default that of the "
            "model's run."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an index of another model or of another folder.")
    ] = False,
    device: Device = "cpu",
) -> None:
    """Embed a folder of images for search; a second run embeds only what changed, and goes on after a stop."""
    from openvse.cli.progress import bar, counted, warn
    from openvse.model import TwoTower
    from openvse.search import build_index, place_of, stored_images
    from openvse.tasks.load import load_as

    loaded = load_as(TwoTower, model, device=device)
    with bar() as progress:
        show = counted(progress, "indexing")
        report = build_index(
            loaded,
            folder,
            out,
            batch_size=batch_size,
            overwrite=overwrite,
            stored=stored_images(loaded, model, features),
            model_place=place_of(model, out),
            progress=lambda state: show(state.done, state.total, state.images_per_s),
        )
    for path, reason in report.failed:
        warn(f"skipped {path}: {reason}")
    more = {"kept by the stopped run": report.resumed, "from stored features": report.stored}
    parts = [f"{report.reused} unchanged", *(f"{count} {what}" for what, count in more.items() if count)]
    typer.echo(f"{out}: {report.count} images ({', '.join(parts)}, {len(report.failed)} unreadable)")


@app.command()
def search(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] INDEX QUERY...",
            help="An index folder and one or more sentences. The index remembers which model made it, and where that "
            "is; name it before the index if it is no longer there.",
        ),
    ],
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", min=1, help="How many hits to list for each query.")
    ] = 10,
    rerank: Annotated[
        str | None,
        typer.Option(help="A model that ranks the first hits of each query again, such as score attention."),
    ] = None,
    rerank_top: Annotated[int, typer.Option(min=1, help="How many hits of each query it ranks again.")] = 20,
    rerank_weight: Annotated[
        float, typer.Option(min=0, max=1, help="Weight w of its score; the score of the index has 1 - w.")
    ] = 1.0,
    rerank_features: Annotated[
        Path | None,
        typer.Option(help="A feature store that the re-ranking model reads instead of the images."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the whole index with its checksum before it is used.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a contact sheet that opens in a browser.")] = None,
    device: Device = "cpu",
) -> None:
    """Find the images that fit a sentence."""
    from openvse.cli.progress import warn
    from openvse.model import TwoTower
    from openvse.search import Index, SearchEngine, contact_sheet
    from openvse.tasks.load import load_as

    model, index, queries = in_order(words)
    if not all(query.strip() for query in queries):
        raise OpenVSEError("a query is empty: say what the image should show")
    loaded = load_as(TwoTower, model, device=device)
    opened = Index.open(index, loaded.fingerprint, check=check)
    if not Path(opened.manifest.root).is_dir():
        warn(
            f"the images of index {index} are no longer in {opened.manifest.root}: run 'openvse index' again"
        )
    engine = SearchEngine(loaded, opened)
    if rerank is None:
        results = engine.search(queries, top_k=top_k)
    else:
        again = load_reranker(rerank, rerank_features, rerank_top, rerank_weight, device)
        first = engine.search(queries, top_k=max(top_k, rerank_top))
        results = [hits[:top_k] for hits in again(queries, first)]
    for query, hits in zip(queries, results, strict=True):
        typer.echo(query)
        for hit in hits:
            typer.echo(f"  {hit.rank:>3}  {hit.score:.4f}  {hit.path}")
    if html is not None:
        write_page(html, contact_sheet(dict(zip(queries, results, strict=True)), title="openvse search"))
        typer.echo(f"written: {html}", err=True)


def in_order(words: Sequence[str]) -> tuple[str, Path, Sequence[str]]:
    """Return the model, the index and the queries of ``[MODEL] INDEX QUERY...``.

    Raises:
        OpenVSEError: there is no query, or the index does not say where its model is.
    """
    from openvse.cli.progress import warn
    from openvse.search import find_model
    from openvse.search.index import MANIFEST

    first = Path(words[0])
    named = not (first / MANIFEST).is_file() and len(words) > 1
    queries = words[2:] if named else words[1:]
    if not queries:
        raise OpenVSEError(f"{' '.join(words)}: no query is given: say what the image should show")
    if named:
        return words[0], Path(words[1]), queries
    found = find_model(first)
    if found.warning:
        warn(found.warning)
    return found.source, first, queries


def load_reranker(model: str, features: Path | None, top: int, weight: float, device: str) -> HitReranker:
    """Load the model that ranks hits again, and the store that it reads, if one is named."""
    from openvse.features import open_store
    from openvse.model import TwoTower
    from openvse.search import HitReranker
    from openvse.tasks.load import load_as

    loaded = load_as(TwoTower, model, device=device)
    store = open_store(features, loaded.image.encoder)
    return HitReranker(loaded, top=top, weight=weight, features=store)
