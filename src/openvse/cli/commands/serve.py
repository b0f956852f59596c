"""``openvse serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Device, Quiet, Threads

if TYPE_CHECKING:
    from openvse.serving import Settings
    from openvse.serving.service import Service

_ACCESS, _LIMITS = "Who may ask", "Limits"


@app.command()
def serve(
    index: Annotated[Path, typer.Argument(help="The folder of an index of images.")],
    model: Annotated[
        str | None, typer.Option(help="The model of the index; by default the one that the index names.")
    ] = None,
    rerank: Annotated[
        str | None, typer.Option(help="A second model, which can rank the first hits of a sentence again.")
    ] = None,
    rerank_top: Annotated[int, typer.Option(min=1, max=200, help="How many hits it ranks again.")] = 20,
    answer: Annotated[
        str | None, typer.Option(help="A model that answers questions about the images.")
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "openvse",
    example: Annotated[
        list[str] | None,
        typer.Option(help="A sentence that the page suggests; by default captions. Repeatable."),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; the default is only reached from this machine.",
            rich_help_panel=_ACCESS,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.", rich_help_panel=_ACCESS)
    ] = 8000,
    token: Annotated[
        str,
        typer.Option(
            envvar="OPENVSE_TOKEN",
            show_envvar=True,
            help="A secret that every request has to show. Other users of this machine can see options, so rather set "
            "the variable.",
            rich_help_panel=_ACCESS,
        ),
    ] = "",
    allow_public: Annotated[
        bool,
        typer.Option(
            "--allow-public", help="Let other machines ask without a token.", rich_help_panel=_ACCESS
        ),
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="A further name by which clients address this machine, such as photos.local. Repeatable.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="Address of a proxy that says which client asks. Repeatable.", rich_help_panel=_ACCESS
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(
            min=0,
            help="Questions per second of one client, on average; 0 is no limit.",
            rich_help_panel=_LIMITS,
        ),
    ] = 20.0,
    max_upload: Annotated[
        float, typer.Option(min=0.1, max=1000, help="Largest upload in MB.", rich_help_panel=_LIMITS)
    ] = 20.0,
    timeout: Annotated[
        float,
        typer.Option(min=1, help="Seconds after which a question is given up.", rich_help_panel=_LIMITS),
    ] = 30.0,
    gather: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            help="Most questions that one call of the model answers.",
            rich_help_panel=_LIMITS,
        ),
    ] = 64,
    thumbnails: Annotated[
        int, typer.Option(min=1, help="Memory for small images in MB.", rich_help_panel=_LIMITS)
    ] = 64,
    device: Device = "cpu",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Serve an index: a page to search it with, and an interface for programs.

    The page is at http://HOST:PORT/ and the description of the interface at /openapi.json. Ctrl-C or SIGTERM ends the
    server when what was asked is answered. An index that is updated meanwhile is served in its new state.
    """
    from openvse.serving import Limits, Settings
    from openvse.serving.running import listen, require_packages, run

    require_packages()
    limits = Limits(
        rate=rate,
        burst=max(1.0, 3 * rate),
        upload_bytes=round(max_upload * 1e6),
        answer_s=timeout,
        together=gather,
        thumbnail_bytes=thumbnails * 1_000_000,
    )
    settings = Settings(
        host=host,
        port=port,
        token=token,
        allow_public=allow_public,
        names=tuple(name or ()),
        proxies=tuple(proxy or ()),
        title=title,
        examples=tuple(example or ()),
        rerank_top=rerank_top,
        limits=limits,
    )
    opened, settings = listen(settings)
    with opened:
        service = load_service(index, settings, model, rerank, answer, device)
        run(service, opened, on_start=lambda: announce(service))


def load_service(
    index: Path, settings: Settings, model: str | None, rerank: str | None, answer: str | None, device: str
) -> Service:
    """Load the models, and open the index.

    Raises:
        OpenVSEError: one of them cannot be used.
    """
    from openvse.cli.commands.search import model_of
    from openvse.model import TwoTower
    from openvse.search.manifest import read_manifest
    from openvse.serving.service import Service
    from openvse.tasks.load import load_as
    from openvse.vqa.answerer import Answerer

    read_manifest(index)
    source = model or model_of(index)
    names = {"model": source, "rerank": rerank or "", "answer": answer or ""}
    return Service(
        index,
        load_as(TwoTower, source, device=device),
        settings,
        reranker=None if rerank is None else load_as(TwoTower, rerank, device=device),
        answerer=None if answer is None else load_as(Answerer, answer, device=device),
        names={key: short_name(name) for key, name in names.items()},
    )


def short_name(source: str) -> str:
    """Return how a model is called on the page: the last parts of its path, or its name on the hub."""
    parts = [part for part in source.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    last = parts[-1:] if parts and parts[-1] != "best" else parts[-2:-1]
    return "/".join(last) if last and Path(source).exists() else source


def announce(service: Service) -> None:
    """Say where the server is, and how to stop it."""
    from openvse.cli.progress import note

    settings = service.settings
    host = "localhost" if settings.host in ("0.0.0.0", "::") else settings.shown_host
    count = len(service.catalog.index)
    note(f"{count:,} images at http://{host}:{settings.port}/ (Ctrl-C stops the server)")
    if settings.token:
        note("the page asks for the token; programs send 'Authorization: Bearer TOKEN'")
