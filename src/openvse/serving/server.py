"""A server: its application (routes, page, error replies and the layers around them), listening, connections and end.

A client that stalls keeps no place from others.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import reprlib
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h11
from anyio import CancelScope
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from openvse import __version__
from openvse.errors import EngineError, IndexFormatError, MissingItemError, ModelError, OpenVSEError, nearest
from openvse.files import STOPS, stops_handled
from openvse.pipeline import quiet
from openvse.serving.assistants import Assistants
from openvse.serving.batching import BusyError
from openvse.serving.layers import Bounds, Guard, Replies, Sessions
from openvse.serving.routes import api, judging, plain, teaching
from openvse.serving.schemas import ManySearches, OneSearch, QuestionBody
from openvse.serving.service import Service
from openvse.serving.settings import Limits, Settings

PAGE = Path(str(files("openvse.serving").joinpath("page")))
"""The folder of the page's files."""

_logger = logging.getLogger(__name__)

_ABOUT = (
    "Search the images of an index by sentences and by images, and ask about them. Errors are JSON with one key, "
    "`error`, whose text says what to do."
)

AT_ONCE = 32
"""Connections accepted in one go, so that connected clients get a turn in between."""

_BACKLOG = 2048
_ROOM = 16
_LONGEST_HEAD = 32_768
_SEND_BUFFER = 262_144
_KEEP_ALIVE_S = 5

# These loggers warn of single sentences, which would fill the log of a server.
_TALKATIVE = ("openvse.model.two_tower", "openvse.vqa.answerer", "openvse.retrieval.hit_reranker")


class PatientServer(Server):
    """A server that accepts few connections at a time, while many may wait."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen. asyncio lets as many wait as it accepts in one go."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)


class Connection(H11Protocol):
    """A connection that is closed if a head takes too long, or if others need its place while it waits for its client.

    When it is lost, its request is given up wherever it waits. ``head_s`` and ``connections`` of the limits count here.
    The other arguments are uvicorn's.
    """

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None, *, limits: Limits) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits, self._since = limits, self.loop.time()
        self._late: asyncio.TimerHandle | None = None
        self._answers, self.app = self.app, self._answer
        self._answering = CancelScope()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request as long as its client is there."""
        with CancelScope() as self._answering:
            if not self.cycle.disconnected:
                await self._answers(scope, receive, send)

    @property
    def _is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _waits(self) -> bool:
        """Whether the next step is the client's: the rest of a head or a body, or reading a reply."""
        return self._is_idle or self.conn.their_state is h11.SEND_BODY or self.flow.write_paused

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the first head its time, and make room for the next connection."""
        super().connection_made(transport)
        self._time_head()
        if len(self.connections) > self._limits.connections - 2 * self._room:  # the closed ones take a moment
            self._make_room()

    def handle_events(self) -> None:
        """Give a head that has begun its time, which ends when the head is whole."""
        super().handle_events()
        self._time_head()

    def on_response_complete(self) -> None:
        """Note the time of the answer to the client."""
        self._since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time of the head, and give up the request."""
        super().connection_lost(exc)
        self._answering.cancel()
        if self._late is not None:
            self._late.cancel()

    def _time_head(self) -> None:
        if not self._is_idle and self._late is not None:
            self._late.cancel()
            self._late = None
        elif self._is_idle and self._late is None:
            self._late = self.loop.call_later(self._limits.head_s, self.timeout_keep_alive_handler)

    @property
    def _room(self) -> int:
        return max(1, self._limits.connections // _ROOM)

    def _make_room(self) -> None:
        """Close those that have waited longest for their clients, first of the address that has most of them."""
        others = (each for each in self.connections if isinstance(each, Connection) and each is not self)
        waiting = [each for each in others if each._waits]
        count = Counter(each._address for each in waiting)
        waiting.sort(key=lambda each: (-count[each._address], each._since))
        for each in waiting[: self._room]:
            self.connections.discard(each)
            each.transport.abort()


def listen(settings: Settings) -> tuple[socket.socket, Settings]:
    """Return a socket that is bound to the address of the settings, and the settings with its port.

    Connections inherit the options of the socket. The system closes one whose client reads nothing for
    ``Limits.stall_s``, and buffers a bounded part of a reply.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Where the protocol is named, asyncio switches Nagle's algorithm off, which holds small replies back for 40 ms.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * settings.limits.stall_s))
        opened.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        opened.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise OpenVSEError(
            f"{settings.shown_host}:{settings.port} cannot be listened on ({reason}): give another --port or --host"
        ) from error
    opened.set_inheritable(False)
    return opened, replace(settings, port=opened.getsockname()[1])


def make_server(app: Any, limits: Limits) -> Server:
    """Return the server of an application. Its ``run`` takes the sockets to listen on."""
    config = Config(
        app,
        http=partial(Connection, limits=limits),  # type: ignore[arg-type] # called, as a class is
        h11_max_incomplete_event_size=_LONGEST_HEAD,
        limit_concurrency=limits.connections,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(limits.stop_s),
        backlog=AT_ONCE,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
    )
    return PatientServer(config)


def run(service: Service, opened: socket.socket, on_start: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal asks to stop, and answer requests in progress first."""
    allow_many_files(2 * service.limits.connections)
    server = make_server(create_app(service), service.limits)
    gc.freeze()  # what stays is not looked through each time that a request makes many objects
    with quiet(*_TALKATIVE), ended_by_signals(server), opened:
        opened.listen()
        service.decoders.begin()
        service.upload_decoders.begin()
        on_start()
        server.run(sockets=[opened])


def run_stdio(service: Service) -> None:
    """Serve the tools for assistants over standard input and output, until the input ends."""

    async def end() -> None:
        await service.stop()
        os._exit(0)  # a thread waits for input, which may never come

    async def serve() -> None:
        app, loop = interface_of(service), asyncio.get_running_loop()
        for number in STOPS:
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, lambda: loop.create_task(end()))
        async with app.router.lifespan_context(app):
            await app.state.assistants.run_stdio()

    with quiet(*_TALKATIVE):
        asyncio.run(serve())


@contextmanager
def ended_by_signals(server: Server) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end the server in order, unless the process ignores them (``nohup``).

    uvicorn handles the first two while it runs, and raises them again when it has ended. The handlers here keep that
    from looking like a failure.
    """

    def end(*_: object) -> None:
        server.should_exit = True

    with stops_handled(end, lambda handler: handler != signal.SIG_IGN):
        yield


def allow_many_files(count: int) -> None:
    """Let the process open ``count`` files and connections, or as many as the system allows."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def create_app(service: Service) -> ASGIApp:
    """Return the application of a service, inside its layers."""
    app = interface_of(service)
    bounded = Bounds(Zipped(app, minimum_size=1000, compresslevel=5), service.limits, service.metrics)
    return Replies(Guard(bounded, service.settings, service.metrics, app.state.sessions), service.metrics)


def interface_of(service: Service) -> FastAPI:
    """Return the routes and the page of a service, without access checks."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # requests are checked by it; two that make it at a time fail
        await service.start()
        assisting = asyncio.create_task(app.state.assistants.run())
        yield
        assisting.cancel()
        await asyncio.wait([assisting])
        await service.stop()

    app = FastAPI(
        title="openvse serve",
        version=__version__,
        description=_ABOUT,
        docs_url=None,  # these pages would load their scripts from elsewhere
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,  # a redirect would repeat whatever host a request names
        lifespan=life,
    )
    app.state.service, app.state.sessions = service, Sessions(service.limits.session_s)
    app.include_router(api)
    app.include_router(plain)
    if service.judges:
        app.include_router(judging)
    if service.teacher is not None:
        app.include_router(teaching)
    page = StaticFiles(directory=PAGE)
    app.mount("/page", page, name="page")

    @app.get("/", include_in_schema=False)
    @app.get("/teach", include_in_schema=False)
    async def first(request: Request) -> Response:
        is_teaching = service.teacher is not None and request.scope["path"] == "/teach"
        reply = await page.get_response("teach.html" if is_teaching else "index.html", request.scope)
        reply.headers["cache-control"] = "no-cache"
        return reply

    for kind in (OpenVSEError, RequestValidationError, TimeoutError, Exception):
        app.add_exception_handler(kind, _reply_error)
    app.add_exception_handler(HTTPException, _reply_status)
    app.state.assistants = Assistants(service, partial(refusal, service))
    if find_spec("mcp") is not None:
        app.router.routes.append(Route("/mcp", app.state.assistants, methods=["POST"], include_in_schema=False))
    return app


class Zipped(GZipMiddleware):
    """Compresses replies, but not images and clips: they are compressed already, and ranges count their bytes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        is_image = scope["type"] == "http" and scope["path"].endswith(("/thumbnail", "/file"))
        await (self.app if is_image else super().__call__)(scope, receive, send)


def refusal(service: Service, error: Exception) -> tuple[int, str]:
    """Return the status and the message of an error, which say what a user can do about it."""
    status, message = 422, service.served.readable(str(error))
    match error:
        case RequestValidationError() | ValidationError():
            first = error.errors()[0]
            place = ".".join(str(each) for each in first["loc"] if each not in ("query", "body", "path"))
            message = _fault(place, first, getattr(error, "body", None))
        case EngineError():  # the message says where the engine is
            service.engine_failed(error)
            status, message = 503, "the engine of this server does not answer: try again in a moment"
        case ModelError() | IndexFormatError() if "/" in str(error):  # the message may say where a model is
            _logger.warning("%s", error)
            status, message = 503, "the index or a model of this server cannot be read: its log says why"
        case MissingItemError():
            status = 404
        case BusyError() | IndexFormatError():
            status = 503
        case TimeoutError():
            status, message = 504, "there was no answer in time: try again, or ask for less"
        case OpenVSEError():
            pass
        case _:
            status, message = 500, "the server failed; its log says why"
    return status, _one_line(message)


async def _reply_error(request: Request, error: Exception) -> JSONResponse:
    """Answer with the message of an error."""
    status, message = refusal(request.app.state.service, error)
    wait = {503: "2", 504: "5"}.get(status)
    return JSONResponse({"error": message}, status, {"retry-after": wait} if wait else None)


def _fault(place: str, first: Mapping[str, Any], body: Any) -> str:
    """Return the message of pydantic's first error."""
    match first["type"]:
        case "json_invalid":
            before = str(body)[: first["loc"][-1]]
            line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
            return f"the body is no JSON: line {line}, column {column}: {first['ctx']['error']}"
        case "setting":
            return place.removesuffix(str(first["loc"][-1])) + str(first["msg"])
        case "missing" if place:
            return f"{place} is missing: give it"
        case "extra_forbidden":
            return f"{place} is no field of this request{nearest(place.rpartition('.')[2], _FIELDS)}"
        case "missing" | "model_attributes_type" if not place:
            return "the body is no object of JSON: send one, with the header Content-Type: application/json"
    should = re.sub("^(Value error, |[A-Z][a-z]+ (?=should))", "", first["msg"])
    place = place or "the body"
    return f"{place} is {reprlib.repr(first['input'])}: it {should}"


_FIELDS = (*OneSearch.model_fields, *ManySearches.model_fields, *QuestionBody.model_fields)


async def _reply_status(request: Request, error: Exception) -> JSONResponse:
    """Answer with the message of a status, in more words than the framework's."""
    assert isinstance(error, HTTPException)
    match error.__cause__, error.status_code:
        case UnicodeDecodeError() as cause, _:
            detail = f"the body is no text in UTF-8: byte {cause.start + 1} is wrong"
        case RecursionError(), _:
            detail = "the body holds lists or objects inside each other, too many: nest fewer"
        case None, 404:
            detail = f"there is no {request.url.path}: /openapi.json describes the interface, and / is the page"
        case None, 405:
            detail = f"{request.url.path} takes no {request.method}: /openapi.json says what it takes"
        case _:
            detail = error.detail
    headers = {name: f"{said}, HEAD" if said == "GET" else said for name, said in (error.headers or {}).items()}
    return JSONResponse({"error": _one_line(detail)}, error.status_code, headers)


def _one_line(text: object) -> str:
    return " ".join(str(text).encode("utf-8", "backslashreplace").decode().split())
