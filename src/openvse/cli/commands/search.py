"""``openvse index`` and ``openvse search``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Device

if TYPE_CHECKING:
    from openvse.search import HitReranker


@app.command()
def index(
    model: Annotated[
        str, typer.Argument(help="A model folder, a hub id, or a name that 'openvse models' lists.")
    ],
    folder: Annotated[Path, typer.Argument(help="A folder of images, at any depth.")],
    out: Annotated[Path, typer.Option(help="The index folder.")] = Path("index"),
    batch_size: Annotated[int, typer.Option(min=1, help="How many images are embedded at a time.")] = 64,
    device: Device = "cpu",
) -> None:
    """Embed a folder of images for search; a second run embeds only what changed."""
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
    typer.echo(f"{out}: {report.count} images ({report.reused} unchanged, {len(report.failed)} unreadable)")


@app.command()
def search(
    model: Annotated[str, typer.Argument(help="The model that made the index.")],
    index: Annotated[Path, typer.Argument(help="An index folder.")],
    queries: Annotated[list[str], typer.Argument(help="One or more sentences.")],
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
    html: Annotated[Path | None, typer.Option(help="Write a contact sheet that opens in a browser.")] = None,
    device: Device = "cpu",
) -> None:
    """Find the images that fit a sentence."""
    from openvse.files import write_whole
    from openvse.model import TwoTower
    from openvse.search import Index, SearchEngine, contact_sheet
    from openvse.tasks.load import load_as

    loaded = load_as(TwoTower, model, device=device)
    engine = SearchEngine(loaded, Index.open(index, loaded.fingerprint))
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
        html.parent.mkdir(parents=True, exist_ok=True)
        write_whole(html, contact_sheet(dict(zip(queries, results, strict=True)), title="openvse search"))
        typer.echo(f"written: {html}", err=True)


def load_reranker(model: str, features: Path | None, top: int, weight: float, device: str) -> HitReranker:
    """Load the model that ranks hits again, and the store that it reads, if one is named."""
    from openvse.features import open_store
    from openvse.model import TwoTower
    from openvse.search import HitReranker
    from openvse.tasks.load import load_as

    loaded = load_as(TwoTower, model, device=device)
    store = open_store(features, loaded.image.encoder)
    return HitReranker(loaded, top=top, weight=weight, features=store)
