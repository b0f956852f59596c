"""``openvse serve``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from openvse.cli import serve_options as given
from openvse.cli.app import app
from openvse.cli.options import Device, Quiet, Threads

if TYPE_CHECKING:
    from openvse.serving import Settings
    from openvse.serving.service import Service


@app.command()
def serve(
    index: given.ServedIndex,
    model: given.ServedModel = None,
    rerank: given.SecondModel = None,
    rerank_top: given.RankedAgain = 20,
    answer: given.AnswerModel = None,
    title: given.Title = "openvse",
    example: given.Examples = None,
    host: given.Host = "127.0.0.1",
    port: given.Port = 8000,
    token: given.Token = "",
    allow_public: given.AllowPublic = False,
    name: given.Names = None,
    proxy: given.Proxies = None,
    rate: given.Rate = 20.0,
    max_upload: given.MaxUpload = 20.0,
    timeout: given.Timeout = 30.0,
    gather: given.Gather = 64,
    thumbnails: given.ThumbnailMemory = 64,
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
    access = Settings(host, port, token, allow_public, tuple(name or ()), tuple(proxy or ()))
    settings = replace(
        access, title=title, examples=tuple(example or ()), rerank_top=rerank_top, limits=limits
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
