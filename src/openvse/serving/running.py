"""Starting a server: models, index, socket, and the orderly end."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from openvse.errors import OpenVSEError
from openvse.serving.service import Service
from openvse.serving.settings import Settings

if TYPE_CHECKING:
    from openvse.serving.patience import OrderlyServer

_NEEDED = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "python_multipart": "python-multipart",
    "prometheus_client": "prometheus-client",
}
_BACKLOG = 2048

# They warn of each sentence, which a server would do for ever.
_TALKATIVE = ("openvse.model.two_tower", "openvse.vqa.answerer", "openvse.search.rerank")


def require_packages() -> None:
    """Raise OpenVSEError unless the packages of the extra ``serve`` are installed."""
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        whole = "openvse" if find_spec("torch") else "openvse-runtime"
        raise OpenVSEError(f"a server needs {', '.join(missing)}: pip install '{whole}[serve]'")


def listen(settings: Settings) -> tuple[socket.socket, Settings]:
    """Return a socket at the address of the settings, and the settings with its port.

    Raises:
        OpenVSEError: the address is taken, or is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Where the protocol is named, asyncio switches Nagle's algorithm off, which holds small replies back for 40 ms.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        opened.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise OpenVSEError(
            f"{settings.shown_host}:{settings.port} cannot be listened on ({reason}): give another --port or --host"
        ) from error
    opened.set_inheritable(False)
    return opened, replace(settings, port=opened.getsockname()[1])


def run(service: Service, opened: socket.socket, on_start: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal asks to stop; requests in progress are answered first.

    Args:
        service: what is served.
        opened: a socket that is bound to an address.
        on_start: is called when the socket listens.
    """
    from openvse.serving.app import create_app
    from openvse.serving.patience import make_server

    allow_many_files(2 * service.limits.connections)
    server = make_server(create_app(service), service.limits, service.settings.proxies)
    with quiet_library(), ended_by_hangup(server), opened:
        opened.listen(_BACKLOG)
        on_start()
        server.run(sockets=[opened])


@contextmanager
def ended_by_hangup(server: OrderlyServer) -> Iterator[None]:
    """Let the end of the terminal end the server as SIGTERM does, unless the process ignores it (``nohup``)."""
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(hangup)
    if before != signal.SIG_IGN:
        signal.signal(hangup, server.handle_exit)
    try:
        yield
    finally:
        signal.signal(hangup, before)


@contextmanager
def quiet_library() -> Iterator[None]:
    """Keep the library from logging what it has to say about each sentence, as replies say it."""
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
    """Let the process open so many files and connections, or as many as the system allows."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
