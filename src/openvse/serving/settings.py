"""The settings of a server: its address, its access, and its limits."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass, field, fields

from openvse.errors import OpenVSEError, check_number

TOKEN_CHARACTERS = 16
"""The shortest token that is accepted."""


@dataclass(frozen=True)
class Limits:
    """The limits of a server. It refuses more with status 4xx, or 503 if it is busy.

    Attributes:
        upload_bytes: the largest body of a request with an image.
        json_bytes: the largest body of any other request.
        bodies: the size of all bodies in progress, in units of the largest body.
        upload_pixels: the largest width x height at which an uploaded image is decoded, which is checked before. A JPEG
            of up to four times as many pixels is decoded at half its sides.
        uploads: uploaded images that are in memory at the same time. Others wait.
        upload_s: seconds in which the whole body of a request has to arrive.
        answer_s: seconds after which an unanswered question fails.
        decode_s: seconds in which an image has to be decoded.
        stall_s: seconds after which a connection is closed whose client reads nothing of a reply (Linux only).
        head_s: seconds in which the head of a request has to arrive.
        session_s: seconds after which the page asks for the token again.
        stop_s: seconds that requests in progress have to end when the server stops.
        connections: the most open connections. Connections that wait for their clients make room for others.
        waiting: the most questions in progress. A client has at most as many places as stay free.
        together: maximum queries per model call. 1 disables batching.
        thumbnail_bytes: memory for small images.
        kept_bytes: memory for images that clients search with. The least recently used are dropped.
        reranked_bytes: memory for embeddings of images by the second model.
        sentences: cached embeddings of sentences, so that the next page of hits needs no text encoder.
    """

    upload_bytes: int = 20_000_000
    json_bytes: int = 250_000
    bodies: int = 10
    upload_pixels: int = 50_000_000
    uploads: int = 8
    upload_s: float = 30.0
    answer_s: float = 30.0
    decode_s: float = 10.0
    stall_s: float = 30.0
    head_s: float = 10.0
    session_s: float = 604_800.0
    stop_s: float = 20.0
    connections: int = 4000
    waiting: int = 512
    together: int = 64
    thumbnail_bytes: int = 64_000_000
    kept_bytes: int = 64_000_000
    reranked_bytes: int = 128_000_000
    sentences: int = 2048

    def __post_init__(self) -> None:
        for each in fields(self):
            check_number(each.name, getattr(self, each.name), 0, whole=isinstance(each.default, int))


@dataclass(frozen=True)
class Settings:
    """The address and names of a server.

    Attributes:
        port: the port. 0 takes a free one.
        token: the secret required with every request. "" disables it.
        allow_public: whether an address that other machines reach is accepted without a token.
        names: further names of this machine by which clients may address the server. "*" accepts any.
        examples: sentences that the page suggests.
        rerank_top: the number of hits of each query that the second model reranks.
        reload_s: seconds between two looks at the index.
        limits: the limits of the server.

    Raises:
        OpenVSEError: other machines could reach the server without a token, the token is too short, or a number is
            outside its range.
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
        check_number("port", self.port, 0, 65535, whole=True)
        check_number("rerank_top", self.rerank_top, 1, whole=True)
        check_number("reload_s", self.reload_s, 0, above=True)
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
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"  # other names are not looked up

    @property
    def shown_host(self) -> str:
        """The host as it is written in an address."""
        return f"[{self.host}]" if ":" in self.host else self.host
