"""A server: where it listens, who may ask, how much it accepts, and how it runs and ends."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from openvse.errors import OpenVSEError
from openvse.files import STOPS

if TYPE_CHECKING:  # the extra ``serve`` may be missing
    from uvicorn import Server

    from openvse.serving.service import Service

TOKEN_CHARACTERS = 16
"""The shortest token that is accepted."""

_NEEDED = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "python_multipart": "python-multipart",
    "prometheus_client": "prometheus-client",
}
_BACKLOG = 2048
_LONGEST_HEAD = 32_768
_SEND_BUFFER = 262_144
_KEEP_ALIVE_S = 5

# These loggers warn of single sentences, which would fill the log of a server.
_TALKATIVE = ("openvse.model.two_tower", "openvse.vqa.answerer", "openvse.search.rerank")


@dataclass(frozen=True)
class Limits:
    """How much a server accepts; what goes beyond a limit is refused with a status of 4xx, or of 503 if it is busy.

    Attributes:
        upload_bytes: the largest body of a request.
        bodies: the bodies of all requests in progress have at most the size of so many of the largest.
        upload_pixels: the largest width x height of an uploaded image, which is checked before it is decoded.
        uploads: uploaded images that are in memory at the same time; others wait.
        upload_s: seconds in which the whole body of a request has to arrive.
        answer_s: seconds after which a question without an answer is given up.
        stall_s: seconds after which a connection is closed whose client reads nothing of a reply (Linux only).
        stop_s: seconds that requests in progress have to end when the server stops.
        connections: open connections from which on requests are refused.
        waiting: questions that wait for the model; further ones are refused.
        together: maximum queries per model call; 1 disables batching.
        characters: the longest sentence.
        thumbnail_bytes: memory for small images.
        reranked_bytes: memory for embeddings of images by the second model.
        sentences: embedded sentences that are kept, so that the next page of hits costs no call of the text encoder.
    """

    upload_bytes: int = 20_000_000
    bodies: int = 10
    upload_pixels: int = 40_000_000
    uploads: int = 8
    upload_s: float = 30.0
    answer_s: float = 30.0
    stall_s: float = 30.0
    stop_s: float = 20.0
    connections: int = 4000
    waiting: int = 512
    together: int = 64
    characters: int = 1000
    thumbnail_bytes: int = 64_000_000
    reranked_bytes: int = 128_000_000
    sentences: int = 2048


@dataclass(frozen=True)
class Settings:
    """Where a server listens, and what it is called.

    Attributes:
        host: the address to listen on.
        port: the port; 0 takes a free one.
        token: the secret that every request has to show; "" lets everybody ask.
        allow_public: whether an address that other machines reach is accepted without a token.
        names: further names of this machine by which clients may address the server; "*" accepts any.
        title: the heading of the page.
        examples: sentences that the page suggests.
        rerank_top: hits of each query that the second model ranks again.
        reload_s: seconds between two looks at the index.
        limits: how much is accepted.

    Raises:
        OpenVSEError: other machines could reach the server without a token, or the token is too short.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""
    allow_public: bool = False
    names: tuple[str, ...] = ()
    title: str = "openvse"
    examples: tuple[str, ...] = ()
    rerank_top: int = 20
    reload_s: float = 2.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.token and (len(self.token) < TOKEN_CHARACTERS or not self.token.isascii()):
            raise OpenVSEError(
                f"the token has {len(self.token)} characters: give at least {TOKEN_CHARACTERS} plain ones, such as "
                f"the output of 'openssl rand -hex 16'"
            )
        if not self.is_local and not self.token and not self.allow_public:
            raise OpenVSEError(
                f"{self.host} can be reached from other machines, and anybody there could see the images: give "
                f"--token, or allow it with --allow-public"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine, or a proxy on it, reaches the server."""
        return is_loopback(self.host)

    @property
    def shown_host(self) -> str:
        """The host as it is written in an address."""
        return f"[{self.host}]" if ":" in self.host else self.host


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself; other names than ``localhost`` are not looked up."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def require_packages() -> None:
    """Raise OpenVSEError unless the packages of the extra ``serve`` are installed."""
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        whole = "openvse" if find_spec("torch") else "openvse-runtime"
        raise OpenVSEError(f"a server needs {', '.join(missing)}: pip install '{whole}[serve]'")


def listen(settings: Settings) -> tuple[socket.socket, Settings]:
    """Return a socket that is bound to the address of the settings, and the settings with its port.

    Connections inherit the options of the socket: the system closes one whose client reads nothing for
    ``Limits.stall_s``, and buffers a bounded part of a reply.

    Raises:
        OpenVSEError: the address is taken, or is not one of this machine.
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
    """Return the server of an application; its ``run`` takes the sockets to listen on."""
    from uvicorn import Config, Server

    config = Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=_LONGEST_HEAD,
        limit_concurrency=limits.connections,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(limits.stop_s),
        backlog=_BACKLOG,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
    )
    return Server(config)


def run(service: Service, opened: socket.socket, on_start: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal asks to stop; requests in progress are answered first.

    Args:
        service: what is served.
        opened: a socket that is bound to an address.
        on_start: is called when the socket listens.
    """
    from openvse.serving.app import create_app

    allow_many_files(2 * service.limits.connections)
    server = make_server(create_app(service), service.limits)
    with quiet_library(), ended_by_signals(server), opened:
        opened.listen(_BACKLOG)
        on_start()
        server.run(sockets=[opened])


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
