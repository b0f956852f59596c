"""``openvse index`` and ``openvse search``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import Device, Json, Quiet, Rerank, RerankTop, RerankWeight, Threads
from openvse.cli.stopping import going_on
from openvse.errors import IndexFormatError, OpenVSEError
from openvse.files import write_page

if TYPE_CHECKING:
    from openvse.cli.queries import Query
    from openvse.search import Hit, HitReranker, Index, IndexReport, SearchEngine

Words: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="[MODEL] INDEX QUERY...",
        help="The folder of an index, and one or more queries: sentences, or paths of images to find similar ones. The "
        "index remembers the place of its model; if the model has moved, give its new place before the index.",
    ),
]


@app.command()
@going_on("what was embedded is kept; run the same command again to continue")
def index(
    model: Annotated[
        str, typer.Argument(help="The model: a model folder, a hub id, or a name from 'openvse models'.")
    ],
    folder: Annotated[Path, typer.Argument(help="The folder of images; its subfolders are included.")],
    out: Annotated[Path, typer.Option(help="Folder of the index.")] = Path("index"),
    batch_size: Annotated[int, typer.Option(min=1, help="Number of images in a batch.")] = 64,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Feature store to read instead of those images that have not changed since the extraction. Default: "
            "the store of the model's training run."
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace the index in --out even if it is of another model or another folder."
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Compare the finished index with its checksums, and look for NaN in it."
        ),
    ] = False,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Embed a folder of images for search. A second run only embeds what has changed, or continues a stopped run."""
    from openvse.cli.progress import bar, counted, warn
    from openvse.media.names import escaped
    from openvse.model import TwoTower
    from openvse.search import Index, build_index, place_of, stored_images
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
        warn(f"skipped {escaped(path)}: {reason}")
    if report.left_out:
        warn(report.left_out.describe())
    if check:
        Index.open(out, loaded.fingerprint, check=True)
    print_report(out, report, as_json=as_json)


def print_report(out: Path, report: IndexReport, *, as_json: bool) -> None:
    """Print what was indexed, as a line or as JSON."""
    from openvse.cli.json_output import print_json

    if as_json:
        counts = {
            "images": report.count,
            "unchanged": report.reused,
            "resumed": report.resumed,
            "stored": report.stored,
            "unreadable": len(report.failed),
        }
        failed = [{"path": str(path), "reason": reason} for path, reason in report.failed]
        left_out = {kind: [str(path) for path in paths] for kind, paths in report.left_out.files.items()}
        print_json("index", {"index": str(out), **counts, "failed": failed, "left_out": left_out})
        return
    more = {"kept by the stopped run": report.resumed, "from stored features": report.stored}
    parts = [f"{report.reused} unchanged", *(f"{count} {what}" for what, count in more.items() if count)]
    typer.echo(f"{out}: {report.count} images ({', '.join(parts)}, {len(report.failed)} unreadable)")


@app.command()
def search(
    words: Words,
    image: Annotated[
        list[Path] | None,
        typer.Option(
            help="An image as a query, to find similar images. You can give this option several times."
        ),
    ] = None,
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", min=1, help="Number of hits to list for each query.")
    ] = 10,
    rerank: Rerank = None,
    rerank_top: RerankTop = 20,
    rerank_weight: RerankWeight = 1.0,
    rerank_features: Annotated[
        Path | None,
        typer.Option(help="Feature store that the --rerank model reads instead of the images."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="First compare the whole index with its checksums, and look for NaN in it."
        ),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="File for a contact sheet of the hits: an HTML page for a browser.")
    ] = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the images of an index that fit a sentence or resemble an image."""
    from openvse.cli.queries import answers, read_queries
    from openvse.model import TwoTower
    from openvse.search import Index, SearchEngine
    from openvse.tasks.load import load_as

    named, index, queries = in_order(words)
    asked = read_queries(queries, image or [])
    if rerank and any(query.image for query in asked):
        raise OpenVSEError("--rerank only takes sentences as queries: leave out --rerank, or the images")
    model = model_of(index) if named is None else named
    loaded = load_as(TwoTower, model, device=device)
    opened = Index.open(index, loaded.fingerprint, check=check)
    engine = SearchEngine(loaded, opened)
    if rerank is None:
        results = answers(engine, asked, top_k)
    else:
        again = load_reranker(rerank, rerank_features, rerank_top, rerank_weight, device)
        first = answers(engine, asked, max(top_k, rerank_top))
        results = [hits[:top_k] for hits in again([query.text for query in asked], first)]
    warn_of_gone(opened, results)
    print_hits(index, asked, results, as_json=as_json)
    if html is not None:
        write_sheet(html, engine, asked, results)


def print_hits(
    index: Path, asked: Sequence[Query], results: Sequence[Sequence[Hit]], *, as_json: bool
) -> None:
    """Print the queries and their hits, as a table or as JSON."""
    from openvse.cli.json_output import print_json
    from openvse.media.names import escaped

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
    """Write the contact sheet, with the captions from the folder of the images."""
    from openvse.cli.progress import note
    from openvse.search import captions_beside, contact_sheet

    page = contact_sheet(
        {query.title: hits for query, hits in zip(asked, results, strict=True)},
        title="openvse search",
        examples={query.title: query.image for query in asked if query.image is not None},
        captions=captions_beside(engine.root),
    )
    write_page(html, page)
    note(f"written: {html}")


def warn_of_gone(index: Index, results: Sequence[Sequence[Hit]]) -> None:
    """Warn if the folder of the images no longer exists, or if some of the images that were found do not."""
    from openvse.cli.progress import warn
    from openvse.media.names import escaped

    root, remedy = Path(index.manifest.root), "run 'openvse index' again"
    if not root.is_dir():
        warn(f"the images of index {index.path} are no longer in {escaped(root)}: {remedy}")
        return
    gone = {hit.path: None for hits in results for hit in hits if not hit.path.is_file()}
    if gone:
        first = escaped(next(iter(gone)))
        warn(f"{len(gone)} of the images found are no longer there (first: {first}): {remedy}")


def in_order(words: Sequence[str]) -> tuple[str | None, Path, Sequence[str]]:
    """Return the model (None if none is named), the index and the queries of ``[MODEL] INDEX QUERY...``.

    Raises:
        OpenVSEError: neither the first nor the second word is an index.
    """
    first, *others = words
    if is_index(first):
        return None, Path(first), others
    if others and is_index(others[0]):
        return first, Path(others[0]), others[1:]
    what = f"neither {first} nor {others[0]} is an index" if others else f"{first} is not an index"
    raise IndexFormatError(f"{what}: give the folder of an index, or make one with 'openvse index'")


def is_index(word: str) -> bool:
    """Return whether a word names the folder of an index."""
    from openvse.search.index import MANIFEST

    try:
        return Path(word, MANIFEST).is_file()
    except OSError:  # a sentence can be too long for the name of a file
        return False


def model_of(index: Path) -> str:
    """Return the place of an index's model, and warn if the model is not where the index says."""
    from openvse.cli.progress import warn
    from openvse.search import find_model

    found = find_model(index)
    if found.warning:
        warn(found.warning)
    return found.source


def load_reranker(model: str, features: Path | None, top: int, weight: float, device: str) -> HitReranker:
    """Load the model that re-ranks hits, and its feature store if one is named."""
    from openvse.features import open_store
    from openvse.model import TwoTower
    from openvse.search import HitReranker
    from openvse.tasks.load import load_as

    loaded = load_as(TwoTower, model, device=device)
    store = open_store(features, loaded.image.encoder)
    return HitReranker(loaded, top=top, weight=weight, features=store)
