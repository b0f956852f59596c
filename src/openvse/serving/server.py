"""A server: its listening, running and end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from openvse.errors import OpenVSEError
from openvse.files import STOPS
from openvse.serving.settings import Limits, Settings

if TYPE_CHECKING:  # each is loaded when it runs
    from uvicorn import Server

    from openvse.serving.service import Service

_LONGEST_HEAD = 32_768
_SEND_BUFFER = 262_144
_KEEP_ALIVE_S = 5

# These loggers warn of single sentences, which would fill the log of a server.
_TALKATIVE = ("openvse.model.two_tower", "openvse.vqa.answerer", "openvse.retrieval.hit_reranker")


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
    from uvicorn import Config

    from openvse.serving.connections import AT_ONCE, Connection, PatientServer

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
