"""The settings of a server: its address, its access, and its limits."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from openvse.errors import OpenVSEError
from openvse.settings import FIRST, Declared, check_settings

ACCESS, LIMITS = "Who may ask", "Limits"
"""The panels of the help for settings of access, and for limits."""

Count: TypeAlias = Annotated[int, Declared(0)]
Seconds: TypeAlias = Annotated[float, Declared(0)]

TOKEN_CHARACTERS = 16
"""The shortest token that is accepted."""


@dataclass(frozen=True)
class Limits:
    """The limits of a server. It refuses more with status 4xx, or 503 if it is busy.

    Attributes:
        max_upload: the largest upload in MB.
        json_bytes: the largest body of any other request.
        bodies: the size of all bodies in progress, in units of the largest body.
        upload_pixels: the largest width x height at which an uploaded image is decoded, which is checked before. A JPEG
            of up to four times as many pixels is decoded at half its sides.
        uploads: uploaded images that are in memory at the same time. Others wait.
        upload_s: seconds in which the whole body of a request has to arrive.
        timeout: seconds until an unanswered question fails.
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

    max_upload: Annotated[float, Declared(0, 1000, above=True, panel=LIMITS, metavar="MB")] = 20.0
    json_bytes: Count = 250_000
    bodies: Count = 10
    upload_pixels: Count = 50_000_000
    uploads: Count = 8
    upload_s: Seconds = 30.0
    timeout: Annotated[float, Declared(0, panel=LIMITS, metavar="S")] = 30.0
    decode_s: Seconds = 10.0
    stall_s: Seconds = 30.0
    head_s: Seconds = 10.0
    session_s: Seconds = 604_800.0
    stop_s: Seconds = 20.0
    connections: Count = 4000
    waiting: Count = 512
    together: Count = 64
    thumbnail_bytes: Count = 64_000_000
    kept_bytes: Count = 64_000_000
    reranked_bytes: Count = 128_000_000
    sentences: Count = 2048

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def upload_bytes(self) -> int:
        """The largest body of a request with an image."""
        return round(self.max_upload * 1e6)


@dataclass(frozen=True)
class Settings:
    """The address and names of a server.

    Attributes:
        title: the heading of the page.
        example: sentences that the page suggests. Default: captions.
        host: the address to listen on. Only this machine reaches the default.
        port: the port. 0 takes a free one.
        token: the secret required with every request. Prefer the variable: other users of this machine can read command
            lines.
        allow_public: admit other machines without a token.
        name: further names by which clients may address this machine, such as photos.local. "*" accepts any.
        rerank_top: the number of hits of each query that the second model reranks.
        reload_s: seconds between two looks at the index.
        limits: the limits of the server.

    Raises:
        OpenVSEError: other machines could reach the server without a token, the token is too short, or a number is
            outside its range.
    """

    title: Annotated[str, Declared(panel=FIRST)] = "openvse"
    example: Annotated[tuple[str, ...], Declared(panel=FIRST)] = ()
    host: Annotated[str, Declared(panel=ACCESS)] = "127.0.0.1"
    port: Annotated[int, Declared(0, 65535, panel=ACCESS, metavar="PORT")] = 8000
    token: Annotated[str, Declared(panel=ACCESS, envvar="OPENVSE_TOKEN")] = ""
    allow_public: Annotated[bool, Declared(panel=ACCESS)] = False
    name: Annotated[tuple[str, ...], Declared(panel=ACCESS)] = ()
    rerank_top: Annotated[int, Declared(1)] = 20
    reload_s: Annotated[float, Declared(0, above=True)] = 2.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_settings(self)
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
