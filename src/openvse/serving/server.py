"""A server: its listening, running and end, and its connections. A client that stalls keeps no place from others."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from openvse.errors import OpenVSEError
from openvse.files import STOPS
from openvse.serving.settings import Limits, Settings

if TYPE_CHECKING:  # it is loaded when it runs
    from openvse.serving.service import Service

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

    ``head_s`` and ``connections`` of the limits count here. The other arguments are uvicorn's.
    """

    def __init__(
        self, config: Any, server_state: Any, app_state: Any, _loop: Any = None, *, limits: Limits
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits, self._since = limits, self.loop.time()
        self._late: asyncio.TimerHandle | None = None

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
        """Forget the time of the head."""
        super().connection_lost(exc)
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
            stall_ms = round(1000 * settings.limits.stall_s)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
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
    from openvse.serving.app import create_app

    allow_many_files(2 * service.limits.connections)
    server = make_server(create_app(service), service.limits)
    gc.freeze()  # what stays is not looked through each time that a request makes many objects
    with quiet_library(), ended_by_signals(server), opened:
        opened.listen()
        service.decoders.begin()
        service.upload_decoders.begin()
        on_start()
        server.run(sockets=[opened])


def run_stdio(service: Service) -> None:
    """Serve the tools for assistants over standard input and output, until the input ends."""
    from openvse.serving.app import interface_of

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

    with quiet_library():
        asyncio.run(serve())


@contextmanager
def ended_by_signals(server: Server) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end the server in order, unless the process ignores them (``nohup``).

    uvicorn handles the first two while it runs, and raises them again when it has ended. The handlers here keep that
    from looking like a failure.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        server.should_exit = True

    before = {number: signal.getsignal(number) for number in STOPS}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def quiet_library() -> Iterator[None]:
    """Silence the library's warnings about single sentences, which replies contain."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def allow_many_files(count: int) -> None:
    """Let the process open ``count`` files and connections, or as many as the system allows."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
