"""``openvse search``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import typer

from openvse.cli.app import app
from openvse.cli.index_options import EngineUrl
from openvse.cli.options import Device, Json, Quiet, Rerank, RerankTop, RerankWeight, Threads
from openvse.cli.search_options import (
    Avoid,
    AvoidWeight,
    CheckIndex,
    Expected,
    Html,
    ImageQueries,
    ImageWeight,
    LikeItems,
    MinPrecision,
    MinScore,
    Null,
    OnePerFile,
    OpenPage,
    Output,
    RerankFeatures,
    SearchEngineOption,
    SearchModel,
    Skip,
    TopK,
    Where,
    WithImage,
    Words,
)
from openvse.errors import IndexFormatError, OpenVSEError
from openvse.files import write_page

if TYPE_CHECKING:
    from openvse.cli.queries import Query, Refinement
    from openvse.search import Hit, HitReranker, Index, SearchEngine


@dataclass(frozen=True)
class Reranking:
    """The model that ranks hits again, and how.

    Attributes:
        model: its folder or name.
        features: the feature store that it reads; None reads the images.
        top: how many hits of each query it ranks again.
        weight: of its score; the score of the index has the rest of 1.
        device: where it computes.
    """

    model: str
    features: Path | None
    top: int
    weight: float
    device: str


@app.command()
def search(
    words: Words,
    model: SearchModel = None,
    image: ImageQueries = None,
    like: LikeItems = None,
    with_image: WithImage = None,
    image_weight: ImageWeight = 0.5,
    avoid: Avoid = None,
    avoid_weight: AvoidWeight = 0.5,
    where: Where = None,
    top_k: TopK = 10,
    skip: Skip = 0,
    one_per_file: OnePerFile = False,
    min_score: MinScore = None,
    min_precision: MinPrecision = None,
    expected: Expected = None,
    rerank: Rerank = None,
    rerank_top: RerankTop = 20,
    rerank_weight: RerankWeight = 1.0,
    rerank_features: RerankFeatures = None,
    engine: SearchEngineOption = None,
    engine_url: EngineUrl = None,
    check: CheckIndex = False,
    html: Html = None,
    open_page: OpenPage = False,
    output: Output = None,
    null: Null = False,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the images that fit a sentence, or resemble an image."""
    from openvse.cli.embedders import engine_of, load_embedder
    from openvse.cli.queries import Refinement, read_queries
    from openvse.cli.search_output import chosen_output, write_hits
    from openvse.search import Index

    named, index, queries = in_order(words, model)
    besides = tuple(avoid or ()), avoid_weight, tuple(where or ())
    lowest = min_score, min_precision, expected
    refined = Refinement(with_image, image_weight, *besides, skip, *lowest, one_per_file)
    asked = read_queries(queries, image or [], like or [])
    form = chosen_output(output, as_json=as_json, null=null)
    check_sentences(asked, refined, rerank)
    loaded = load_embedder(model_of(index) if named is None else named, device=device, threads=threads)
    opened = Index.open(index, loaded.fingerprint, check=check)
    sentences = opened.manifest.holds == "sentences"
    if sentences:
        check_holds_images(index, rerank or html or open_page)
    searcher = engine_of(loaded, opened, engine=engine, engine_url=engine_url)
    again = Reranking(rerank, rerank_features, rerank_top, rerank_weight, device) if rerank else None
    results = ranked(searcher, asked, top_k, refined, again)
    warn_of_gone(opened, results)
    if form in ("table", "json"):
        print_hits(index, asked, results, refined, as_json=form == "json", sentences=sentences)
    else:
        write_hits(asked, results, form, null=null)
    if html is not None or open_page:
        write_sheet(html or new_page(), searcher, asked, results, opened=open_page)


def ranked(
    engine: SearchEngine,
    asked: Sequence[Query],
    top_k: int,
    refined: Refinement,
    reranking: Reranking | None,
) -> list[list[Hit]]:
    """Return the hits of all queries, ranked again where a model for that is given."""
    from openvse.cli.queries import answers

    again = None if reranking is None else load_reranker(reranking, engine, refined)
    if refined.min_precision is not None:
        warn_of_precision(engine, refined, again)
    if again is None:
        return answers(engine, asked, top_k, refined)
    plain = replace(refined, skip=0, min_score=None, min_precision=None)
    first = answers(engine, asked, max(top_k + refined.skip, again.top), plain)
    return [refined.page(hits, top_k) for hits in again([query.text for query in asked], first)]


def show_page(page: Path) -> None:
    """Open a page in the user's browser, or say that there is none."""
    import webbrowser

    from openvse.cli.progress import warn

    if not webbrowser.open(page.resolve().as_uri()):
        warn(f"no browser could be started: open {page} yourself")


def print_hits(
    index: Path,
    asked: Sequence[Query],
    results: Sequence[Sequence[Hit]],
    refined: Refinement,
    *,
    as_json: bool,
    sentences: bool = False,
) -> None:
    """Print what was asked and what was found, as a table or as JSON."""
    from openvse.cli.json_output import print_json
    from openvse.media.names import escaped
    from openvse.media.segments import clock
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
                        "start": hit.start,
                        "end": hit.end,
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
            name = escaped(hit.id if sentences else hit.path)
            span = "" if hit.start is None or hit.end is None else f"  {clock(hit.start)}-{clock(hit.end)}"
            typer.echo(f"  {hit.rank:>3}  {hit.score:.4f}  {likely}{name}{span}")
        if not hits and query.text.strip():
            typer.echo(f"  {refined.nothing}")


def check_sentences(asked: Sequence[Query], refined: Refinement, rerank: str | None) -> None:
    """Raise OpenVSEError unless all queries are sentences and nothing else, where an option needs this."""
    if not refined.is_compound and all(query.kind == "text" for query in asked):
        return
    for option, given in (("--rerank", rerank), ("--min-precision", refined.min_precision)):
        if given:
            raise OpenVSEError(
                f"{option} only takes sentences as queries: leave out {option}, or images, items and --avoid"
            )


def check_holds_images(index: Path, needed: object) -> None:
    """Raise OpenVSEError where images are needed of an index of sentences."""
    if needed:
        raise OpenVSEError(
            f"{index} holds sentences: leave out --rerank, --html and --open, which need images"
        )


def warn_of_precision(engine: SearchEngine, refined: Refinement, again: HitReranker | None) -> None:
    """Warn where no score stands for the wanted precision, and refuse a precision where there is no curve."""
    from openvse.cli.progress import warn

    chances = (
        engine.chances(refined.where, refined.expected, refined.min_precision)
        if again is None
        else again.chances
    )
    if chances is None or chances.highest is None or refined.min_precision is None:
        return
    if chances.highest < refined.min_precision:
        warn(
            f"precision {refined.min_precision:g} is out of reach in a search of {chances.gallery:,} images: the best "
            f"score stands for probability {chances.highest:.2g}"
        )


def new_page() -> Path:
    """Return where a page goes that nobody asked to keep."""
    return Path(mkdtemp(prefix="openvse-"), "hits.html")


def write_sheet(
    html: Path,
    engine: SearchEngine,
    asked: Sequence[Query],
    results: Sequence[Sequence[Hit]],
    *,
    opened: bool = False,
) -> None:
    """Write the contact sheet, and open it if wanted, with the captions that lie beside the images."""
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
    if opened:
        show_page(html)


def warn_of_gone(index: Index, results: Sequence[Sequence[Hit]]) -> None:
    """Warn where the images of the index have moved away, or some of those that were found are gone."""
    from openvse.cli.progress import warn
    from openvse.media.names import escaped

    remedy = "run 'openvse index' again"
    if not index.is_complete:
        warn(f"index {index.path} is not complete, as its indexing goes on or was stopped: {remedy} to go on")
    away = [root.path for root in index.roots if not Path(root.path).exists()]
    for root in away:
        warn(f"the images of index {index.path} are no longer in {escaped(root)}: {remedy}")
    if away:
        return
    gone = {hit.path: None for hits in results for hit in hits if not hit.path.is_file()}
    if gone:
        first = escaped(next(iter(gone)))
        are = "is" if len(gone) == 1 else "are"
        warn(f"{len(gone)} of the images found {are} no longer there (first: {first}): {remedy}")


def in_order(words: Sequence[str], model: str | None) -> tuple[str | None, Path, Sequence[str]]:
    """Return the model, if one is named, the index and the queries of ``[MODEL] INDEX QUERY...``.

    Args:
        words: the arguments of the command.
        model: the model that an option names.

    Raises:
        OpenVSEError: neither the first nor the second word is an index, or the model is named twice.
    """
    first, *others = words
    if is_index(first):
        return model, Path(first), others
    if others and is_index(others[0]):
        if model is not None:
            raise OpenVSEError(f"the model is given twice, as {first} and --model {model}: give one of them")
        return first, Path(others[0]), others[1:]
    what = f"neither {first} nor {others[0]} is an index" if others else f"{first} is not an index"
    raise IndexFormatError(f"{what}: give the folder of an index, or make one with 'openvse index'")


def is_index(word: str) -> bool:
    """Return whether a word names the folder of an index."""
    from openvse.index.manifest import MANIFEST

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


def load_reranker(given: Reranking, engine: SearchEngine, refined: Refinement) -> HitReranker:
    """Load the model that ranks hits again, and the store that it reads, if one is named.

    Raises:
        OpenVSEError: a precision is wanted of a mixture of two scores.
        ModelError: a precision is wanted, and the model keeps no curve.
    """
    from openvse.features import open_store
    from openvse.model import TwoTower
    from openvse.search import Chances, HitReranker
    from openvse.tasks.load import load_as

    if refined.min_precision is not None and given.weight < 1:
        raise OpenVSEError(
            "--min-precision needs the score of one model, and --rerank-weight mixes two: leave one of them out"
        )
    loaded = load_as(TwoTower, given.model, device=given.device)
    store = open_store(given.features, loaded.image.encoder)
    chances = None
    if given.weight == 1:
        searched = engine.chances(refined.where, refined.expected, None).gallery
        chances = Chances(loaded.calibration, searched, refined.expected, refined.min_precision)
    return HitReranker(loaded, top=given.top, weight=given.weight, features=store, chances=chances)
