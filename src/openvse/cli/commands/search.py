"""``openvse index`` and ``openvse search``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    Device,
    Expected,
    Json,
    MinPrecision,
    Quiet,
    Rerank,
    RerankFeatures,
    RerankWeight,
    Threads,
)
from openvse.cli.stopping import going_on
from openvse.errors import IndexFormatError, OpenVSEError
from openvse.files import write_page

if TYPE_CHECKING:
    from openvse.cli.queries import Query, Wanted
    from openvse.search import Hit, HitReranker, Index, IndexReport, SearchEngine


@dataclass(frozen=True)
class Reranking:
    """The model that ranks hits again, and how.

    Attributes:
        model: its folder or name.
        features: the feature store that it reads; None reads the images.
        top: how many hits of each query it ranks again.
        weight: of its score; the score of the index has the rest of 1.
    """

    model: str
    features: Path | None
    top: int
    weight: float


@app.command()
@going_on("what was embedded is kept; run the same command again to go on")
def index(
    model: Annotated[
        str, typer.Argument(help="A model folder, a hub id, or a name that 'openvse models' lists.")
    ],
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
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Read the finished index again, and compare it with its checksums; look for NaN."
        ),
    ] = False,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Embed a folder of images for search; a second run embeds only what changed, and goes on after a stop."""
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
    """Print what indexing did, as a line or as JSON."""
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
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] INDEX QUERY...",
            help="An index folder, and sentences or paths of images to find similar ones. The index remembers which "
            "model made it, and where that is; name it before the index if it is no longer there.",
        ),
    ],
    image: Annotated[
        list[Path] | None, typer.Option(help="An image to find similar ones; may be given several times.")
    ] = None,
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", min=1, help="How many hits to list for each query.")
    ] = 10,
    min_precision: MinPrecision = None,
    expected: Expected = None,
    rerank: Rerank = None,
    rerank_top: Annotated[int, typer.Option(min=1, help="How many hits of each query it ranks again.")] = 20,
    rerank_weight: RerankWeight = 1.0,
    rerank_features: RerankFeatures = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Before it is used, compare the whole index with its checksums; look for NaN."
        ),
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a contact sheet that opens in a browser.")] = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the images that fit a sentence, or resemble an image."""
    from openvse.cli.queries import Wanted, find, read_queries
    from openvse.model import TwoTower
    from openvse.search import Index, SearchEngine
    from openvse.tasks.load import load_as

    named, index, queries = in_order(words)
    asked = read_queries(queries, image or [])
    wanted = Wanted(top_k, min_precision, expected)
    check_options(asked, wanted, rerank, rerank_weight)
    loaded = load_as(TwoTower, model_of(index) if named is None else named, device=device)
    opened = Index.open(index, loaded.fingerprint, check=check)
    engine = SearchEngine(loaded, opened)
    again = None
    if rerank is not None:
        reranking = Reranking(rerank, rerank_features, rerank_top, rerank_weight)
        again = load_reranker(reranking, device, len(opened), expected)
    results = find(engine, asked, wanted, again)
    warn_of_gone(opened, results)
    print_hits(index, asked, results, wanted, as_json=as_json)
    if html is not None:
        write_sheet(html, engine, asked, results)


def check_options(asked: Sequence[Query], wanted: Wanted, rerank: str | None, rerank_weight: float) -> None:
    """Refuse images for what reads sentences, and a precision for scores that have no curve."""
    with_images = any(query.image for query in asked)
    for option, given in (("--rerank", rerank), ("--min-precision", wanted.min_precision)):
        if given is not None and with_images:
            raise OpenVSEError(f"{option} reads sentences: leave it out, or leave the images out")
    if wanted.min_precision is not None and rerank is not None and rerank_weight < 1:
        raise OpenVSEError(
            "--min-precision needs the score of one model, and --rerank-weight mixes two: leave one of them out"
        )


def print_hits(
    index: Path,
    asked: Sequence[Query],
    results: Sequence[Sequence[Hit]],
    wanted: Wanted,
    *,
    as_json: bool,
) -> None:
    """Print what was asked and what was found, as a table or as JSON."""
    from openvse.cli.json_output import print_json
    from openvse.media.names import escaped
    from openvse.output.documents import percent

    if as_json:
        queries = [
            {
                "query": query.text,
                "kind": query.kind,
                "unknown_words": [asdict(word) for word in (hits[0].unknown_words if hits else ())],
                "hits": [
                    {
                        "rank": hit.rank,
                        "score": hit.score,
                        "probability": hit.probability,
                        "id": hit.id,
                        "path": str(hit.path),
                    }
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
            likely = "" if hit.probability is None else f"{percent(hit.probability):>5}  "
            typer.echo(f"  {hit.rank:>3}  {hit.score:.4f}  {likely}{escaped(hit.path)}")
        if wanted.min_precision is not None and not hits:
            typer.echo(f"  no image of probability {wanted.min_precision:g}")


def write_sheet(
    html: Path, engine: SearchEngine, asked: Sequence[Query], results: Sequence[Sequence[Hit]]
) -> None:
    """Write the contact sheet, with the captions that lie beside the images."""
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
    """Warn where the images of the index have moved away, or some of those that were found are gone."""
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
    """Return the model, if one is named, the index and the queries of ``[MODEL] INDEX QUERY...``.

    Raises:
        OpenVSEError: neither the first nor the second word is an index.
    """
    first, *others = words
    if is_index(first):
        return None, Path(first), others
    if others and is_index(others[0]):
        return first, Path(others[0]), others[1:]
    what = f"neither {first} nor {others[0]} is an index" if others else f"{first} is no index"
    raise IndexFormatError(f"{what}: give the folder of one, or make one with 'openvse index'")


def is_index(word: str) -> bool:
    """Return whether a word names the folder of an index."""
    from openvse.search.index import MANIFEST

    try:
        return Path(word, MANIFEST).is_file()
    except OSError:  # a sentence may be longer than any name
        return False


def model_of(index: Path) -> str:
    """Return where the model of an index is, and warn where the index has moved away from it."""
    from openvse.cli.progress import warn
    from openvse.search import find_model

    found = find_model(index)
    if found.warning:
        warn(found.warning)
    return found.source


def load_reranker(given: Reranking, device: str, gallery: int, expected: float | None) -> HitReranker:
    """Load the model that ranks hits again, and the store that it reads, if one is named."""
    from openvse.features import open_store
    from openvse.model import TwoTower
    from openvse.search import HitReranker
    from openvse.tasks.load import load_as

    loaded = load_as(TwoTower, given.model, device=device)
    return HitReranker(
        loaded,
        top=given.top,
        weight=given.weight,
        features=open_store(given.features, loaded.image.encoder),
        gallery=gallery,
        expected=expected,
    )
