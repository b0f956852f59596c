"""``openvse index`` and ``openvse search``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Device, Json, Quiet, Rerank, Threads
from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.cli.queries import Query
    from openvse.search import Hit, HitReranker, SearchEngine


@app.command()
def index(
    model: Annotated[str, typer.Argument(help="A model folder or a hub id.")],
    folder: Annotated[Path, typer.Argument(help="A folder of images, at any depth.")],
    out: Annotated[Path, typer.Option(help="The index folder.")] = Path("index"),
    batch_size: Annotated[int, typer.Option(min=1, help="How many images are embedded at a time.")] = 64,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Embed a folder of images for search; a second run embeds only what changed."""
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import bar, counted, warn
    from openvse.media.names import escaped
    from openvse.model import TwoTower
    from openvse.search import build_index
    from openvse.tasks.load import load_as

    loaded = load_as(TwoTower, model, device=device)
    with bar() as progress:
        show = counted(progress, "indexing")
        report = build_index(
            loaded,
            folder,
            out,
            batch_size=batch_size,
            progress=lambda state: show(state.done, state.total, state.images_per_s),
        )
    for path, reason in report.failed:
        warn(f"skipped {escaped(path)}: {reason}")
    if report.left_out:
        warn(report.left_out.describe())
    if as_json:
        failed = [{"path": str(path), "reason": reason} for path, reason in report.failed]
        left_out = {kind: [str(path) for path in paths] for kind, paths in report.left_out.files.items()}
        counts = {"images": report.count, "unchanged": report.reused, "unreadable": len(failed)}
        print_json("index", {"index": str(out), **counts, "failed": failed, "left_out": left_out})
        return
    typer.echo(f"{out}: {report.count} images ({report.reused} unchanged, {len(report.failed)} unreadable)")


@app.command()
def search(
    model: Annotated[str, typer.Argument(help="The model that made the index.")],
    index: Annotated[Path, typer.Argument(help="An index folder.")],
    queries: Annotated[
        list[str] | None, typer.Argument(help="Sentences, and paths of images to find similar ones.")
    ] = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="An image to find similar ones; may be given several times.")
    ] = None,
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", min=1, help="How many hits to list for each query.")
    ] = 10,
    rerank: Rerank = None,
    rerank_top: Annotated[int, typer.Option(min=1, help="How many hits of each query it ranks again.")] = 20,
    rerank_weight: Annotated[
        float, typer.Option(min=0, max=1, help="Weight w of its score; the score of the index has 1 - w.")
    ] = 1.0,
    rerank_features: Annotated[
        Path | None,
        typer.Option(help="A feature store that the re-ranking model reads instead of the images."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a contact sheet that opens in a browser.")] = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the images that fit a sentence, or resemble an image."""
    from openvse.cli.queries import answers, read_queries
    from openvse.model import TwoTower
    from openvse.search import Index, SearchEngine
    from openvse.tasks.load import load_as

    asked = read_queries(queries or [], image or [])
    if rerank and any(query.image for query in asked):
        raise OpenVSEError("--rerank reads sentences: leave it out, or leave the images out")
    loaded = load_as(TwoTower, model, device=device)
    engine = SearchEngine(loaded, Index.open(index, loaded.fingerprint))
    if rerank is None:
        results = answers(engine, asked, top_k)
    else:
        again = load_reranker(rerank, rerank_features, rerank_top, rerank_weight, device)
        first = answers(engine, asked, max(top_k, rerank_top))
        results = [hits[:top_k] for hits in again([query.text for query in asked], first)]
    print_hits(index, asked, results, as_json=as_json)
    if html is not None:
        write_sheet(html, engine, asked, results)


def print_hits(
    index: Path, asked: Sequence[Query], results: Sequence[Sequence[Hit]], *, as_json: bool
) -> None:
    """Print what was asked and what was found, as a table or as JSON, and warn of images that are gone."""
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import warn
    from openvse.media.names import escaped

    gone = {hit.path: None for hits in results for hit in hits if not hit.path.is_file()}
    if gone:
        first = escaped(next(iter(gone)))
        warn(f"{len(gone)} of the images found are no longer there (first: {first}): run openvse index again")
    if as_json:
        queries = [
            {
                "query": query.text,
                "kind": query.kind,
                "unknown_words": [asdict(word) for word in (hits[0].unknown_words if hits else ())],
                "hits": [
                    {"rank": hit.rank, "score": hit.score, "id": hit.id, "path": str(hit.path)}
                    for hit in hits
                ],
            }
            for query, hits in zip(asked, results, strict=True)
        ]
        print_json("search", {"index": str(index), "queries": queries})
        return
    for query, hits in zip(asked, results, strict=True):
        typer.echo(query.title)
        for hit in hits:
            typer.echo(f"  {hit.rank:>3}  {hit.score:.4f}  {escaped(hit.path)}")


def write_sheet(
    html: Path, engine: SearchEngine, asked: Sequence[Query], results: Sequence[Sequence[Hit]]
) -> None:
    """Write the contact sheet, with the captions that lie beside the images."""
    from openvse.cli.progress import note
    from openvse.files import write_whole
    from openvse.search import captions_beside, contact_sheet

    page = contact_sheet(
        {query.title: hits for query, hits in zip(asked, results, strict=True)},
        title="openvse search",
        examples={query.title: query.image for query in asked if query.image is not None},
        captions=captions_beside(engine.root),
    )
    html.parent.mkdir(parents=True, exist_ok=True)
    write_whole(html, page)
    note(f"written: {html}")


def load_reranker(model: str, features: Path | None, top: int, weight: float, device: str) -> HitReranker:
    """Load the model that ranks hits again, and the store that it reads, if one is named."""
    from openvse.features import open_store
    from openvse.model import TwoTower
    from openvse.search import HitReranker
    from openvse.tasks.load import load_as

    loaded = load_as(TwoTower, model, device=device)
    store = open_store(features, loaded.image.encoder)
    return HitReranker(loaded, top=top, weight=weight, features=store)
