"""``openvse serve``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from openvse.cli.app import app
from openvse.cli.commands.search import Yes, index_of, warn_of_far
from openvse.cli.options import Device, Engine, Rerank, Reranking, Threads, argument, few_first, option, with_settings
from openvse.cli.progress import note, warn
from openvse.errors import IndexFormatError, OpenVSEError
from openvse.indexing.manifest import find_model, index_folder, read_manifest
from openvse.media.ranks import FactSource
from openvse.search.provided import ANSWERER, STORE_ADDRESS, TEACHER
from openvse.serving.settings import ACCESS, LIMITS, Limits, Settings

if TYPE_CHECKING:
    from openvse.runtime.model import WholeModel
    from openvse.search.opening import LoadedModel
    from openvse.search.provided import AnswersQuestions, Teaches
    from openvse.serving.served import Source
    from openvse.serving.service import Service


METADATA: str = FactSource.USER.value

ServedIndex: TypeAlias = Annotated[
    str,
    argument(
        "The folder of an index of images, or an engine that an index has filled: qdrant://HOST:6333 or "
        "postgresql://USER@HOST/DATABASE.",
        metavar="INDEX_OR_URL",
        shown=False,
    ),
]
ServedModel: TypeAlias = Annotated[
    str | None,
    option(
        "The model of the index, or its export. An engine needs it. Default: the model that the index names.",
        shown=False,
    ),
]
ServedImages: TypeAlias = Annotated[
    Path | None,
    option(
        "For an engine: folder on this machine that holds the first of the indexed folders.", "--images", shown=False
    ),
]
Watch: TypeAlias = Annotated[
    bool, option("Update the index, as 'openvse index' does, whenever its folders change.", "--watch")
]
AnswerModel: TypeAlias = Annotated[str | None, option("A model that answers questions about the images.")]
Mcp: TypeAlias = Annotated[
    bool,
    option(
        "Serve an assistant's program over standard input and output (Model Context Protocol), without a page. A "
        "server with a page has the same tools at /mcp.",
        "--mcp",
    ),
]

Teach: TypeAlias = Annotated[
    str | None,
    option(
        "Let the page and programs save captions of the images, and learn from each. A folder without an index gets "
        "one by the model names. The captions are in metadata.jsonl of the folder, or in FILE, which ends in .jsonl.",
        "--teach",
        metavar="[FILE]",
    ),
]
_FIRST = "model images yes watch teach mcp rerank answer engine device threads"


@app.command(
    rich_help_panel="Search",
    cls=few_first(*_FIRST.split(), panels={ACCESS: (), LIMITS: ()}, bare={"--teach": (METADATA, "*.jsonl")}),
)
@with_settings
def serve(
    index: ServedIndex,
    *,
    model: ServedModel = None,
    images: ServedImages = None,
    yes: Yes = False,
    watch: Watch = False,
    teach: Teach = None,
    mcp: Mcp = False,
    rerank: Rerank = None,
    answer: AnswerModel = None,
    engine: Engine = None,
    settings: Callable[..., Settings],
    limits: Limits,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Serve an index or an engine: a web page to search it, and an HTTP interface for programs.

    The page is at http://HOST:PORT/ and the description of the interface at /openapi.json. Ctrl-C or SIGTERM stops the
    server after it has finished pending requests. It serves updates of the index without a restart. --watch makes them.
    """
    from openvse.search.opening import holds_pictures
    from openvse.serving.server import listen, run, run_stdio

    if holds_pictures(index):
        index = str(index_of(Path(index), model, yes=yes, device=device, teach=teach is not None)[0])
        model = None  # the index names it
    second = None if rerank is None else Reranking.read(rerank)
    top = Settings.rerank_top if second is None else second.top
    chosen = settings(rerank_top=top, limits=limits)
    if mcp:
        if chosen != Settings(token=chosen.token, rerank_top=top, limits=limits):
            raise OpenVSEError(
                "--mcp has no page or address: leave out --host, --port, --allow-public, --name, --title and --example"
            )
        source = source_of(index, model, images, engine)
        run_stdio(load_service(source, chosen, model, second, answer, device, threads, watch=watch, teach=teach))
        return
    opened, chosen = listen(chosen)
    with opened:
        source = source_of(index, model, images, engine)
        service = load_service(source, chosen, model, second, answer, device, threads, watch=watch, teach=teach)
        run(service, opened, on_start=lambda: announce(service))


def source_of(word: str, model: str | None, images: Path | None, engine: str | None) -> Source:
    """Return the source to serve. Raise OpenVSEError if there is none, or if an option does not fit it."""
    from openvse.serving.served import Source
    from openvse.stores.choice import shown_url

    if "://" not in word:
        if images is not None:
            raise OpenVSEError("--images is for an engine: leave it out for an index")
        return Source(index_folder(word) or Path(word), engine)
    name = shown_url(word)
    if engine is not None:
        raise OpenVSEError(f"{name} is an engine itself: leave out --engine")
    if model is None:
        raise OpenVSEError(f"{name} does not name its model: give it with --model")
    if images is not None and not images.is_dir():
        raise OpenVSEError(f"{images} is no folder: give --images the indexed folder on this machine")
    return Source(STORE_ADDRESS.get()(word), images=images)


def load_service(
    source: Source,
    settings: Settings,
    model: str | None,
    rerank: Reranking | None,
    answer: str | None,
    device: str,
    threads: int | None,
    *,
    watch: bool = False,
    teach: str | None = None,
) -> Service:
    """Load the models, and open the index or the engine. Raise OpenVSEError if one of them cannot be used."""
    from openvse.serving.service import Service

    loaded, named = load_served(source, model, device, threads)
    if teach is not None:
        source = replace(source, judged=True, teacher=load_teacher(source, loaded, teach))
    names = {"model": named, "rerank": "" if rerank is None else rerank.model, "answer": answer or ""}
    return Service(
        source,
        loaded,
        settings,
        reranker=None if rerank is None else load_second(rerank, device),
        answerer=None if answer is None else load_answerer(answer, device),
        names={key: short_name(name) for key, name in names.items()},
        watch=watch,
    )


def load_teacher(source: Source, loaded: LoadedModel, file: str) -> Teaches:
    """Open the teacher of an index, with the file of captions."""
    if not isinstance(source.place, Path) or source.engine is not None:
        raise OpenVSEError("--teach needs the folder of an index, or of images, and no --engine")
    return TEACHER.get()(source.place, loaded, None if file == METADATA else Path(file))


def load_served(
    source: Source, model: str | None, device: str = "cpu", threads: int | None = None
) -> tuple[LoadedModel, str]:
    """Load the model that embeds the queries of an index or an engine, and return it with its place."""
    from openvse.runtime.model import load_embedder
    from openvse.search.opening import load_for_index

    if not isinstance(source.place, Path):  # an engine, whose model has to be named
        return load_embedder(model or "", device=device, threads=threads), model or ""
    manifest, named = read_manifest(source.place), model or ""
    with suppress(IndexFormatError):  # the towers may be all that is left of it
        named = model or find_model(source.place, manifest)[0]
    return load_for_index(source.place, manifest, model, device=device, threads=threads), named


def load_second(rerank: Reranking, device: str) -> WholeModel:
    """Load the model of ``--rerank``. Raise OpenVSEError if it cannot be used, or has a weight or features."""
    if rerank.weight != 1 or rerank.features is not None:
        raise OpenVSEError("a server takes no weight and no features of --rerank: give MODEL[,top=N]")
    from openvse.runtime.model import MODEL_LOADER

    source = rerank.model
    refuse_without_torch("--rerank", source)
    return MODEL_LOADER.get()(source, device=device)


def load_answerer(source: str, device: str) -> AnswersQuestions:
    """Load the model of ``--answer``."""
    refuse_without_torch("--answer", source)
    return ANSWERER.get()(source, device)


def refuse_without_torch(option: str, source: str) -> None:
    """Raise OpenVSEError if an option needs a PyTorch model and the user names an exported one."""
    from openvse.runtime.model import is_export

    if is_export(source):
        raise OpenVSEError(f"{option} needs a PyTorch model, but {source} is an exported one: name the model itself")


def short_name(source: str) -> str:
    """Return the name of a model for the page: the last part of its path, or its name on the hub."""
    parts = [part for part in source.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    last = parts[-1:] if parts and parts[-1] != "best" else parts[-2:-1]
    return "/".join(last) if last and Path(source).exists() else source


def announce(service: Service) -> None:
    """Print the address of the server, and how to stop it."""
    settings = service.settings
    host = "localhost" if settings.host in ("0.0.0.0", "::") else settings.shown_host
    count, engine = len(service.served), service.served.engine.catalogue.place
    what = f"{count:,} images" + (f" of {engine}" if engine else "")
    note(f"{what} at http://{host}:{settings.port}/ (Ctrl-C stops the server)")
    if not service.served.has_images:
        warn(
            "the indexed folders are not on this machine, so the page shows paths and no images"
            + (": name the first one with --images" if engine else ": run 'openvse index' again")
        )
    warn_of_far(service.served.far_roots)
    if service.teacher is not None:
        note(f"http://{host}:{settings.port}/teach saves captions")
    if not service.looks:
        note("an exported model can search, but cannot show the regions that it used")
    if settings.token:
        note("the page asks for the token, and programs send 'Authorization: Bearer TOKEN'")
