"""``openvse index`` and ``openvse search``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Device
from openvse.errors import OpenVSEError


@app.command()
def index(
    model: Annotated[str, typer.Argument(help="A model folder or a hub id.")],
    folder: Annotated[Path, typer.Argument(help="Pictures, at any depth.")],
    out: Annotated[Path, typer.Option(help="The index folder.")] = Path("index"),
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures at a time.")] = 64,
    device: Device = "cpu",
) -> None:
    """Embed a folder of pictures for search; run again, it embeds only what changed."""
    from openvse.build import load_model
    from openvse.cli.progress import bar, counted, warn
    from openvse.search import build_index

    loaded = load_model(model, device=device)
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
        warn(f"skipped {path}: {reason}")
    typer.echo(f"{out}: {report.count} pictures ({report.reused} unchanged, {len(report.failed)} unreadable)")


@app.command()
def search(
    model: Annotated[str, typer.Argument(help="The model that made the index.")],
    index: Annotated[Path, typer.Argument(help="An index folder.")],
    queries: Annotated[list[str], typer.Argument(help="One or more sentences.")],
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Hits a query.")] = 10,
    html: Annotated[Path | None, typer.Option(help="Write a contact sheet that opens in a browser.")] = None,
    device: Device = "cpu",
) -> None:
    """Find the pictures that fit a sentence."""
    from openvse.build import load_model
    from openvse.files import write_whole
    from openvse.search import Index, SearchEngine, contact_sheet

    if not all(query.strip() for query in queries):
        raise OpenVSEError("a query is empty: say what the picture should show")
    loaded = load_model(model, device=device)
    engine = SearchEngine(loaded, Index.open(index, loaded.fingerprint))
    results = engine.search(queries, top_k=top_k)
    for query, hits in zip(queries, results, strict=True):
        typer.echo(query)
        for hit in hits:
            typer.echo(f"  {hit.rank:>3}  {hit.score:.4f}  {hit.path}")
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        write_whole(html, contact_sheet(dict(zip(queries, results, strict=True)), title="openvse search"))
        typer.echo(f"written: {html}", err=True)
