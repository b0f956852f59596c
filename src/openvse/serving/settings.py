"""How a server behaves: where it listens, who may ask, and how much of anything it accepts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from openvse.errors import OpenVSEError

TOKEN_CHARACTERS = 16
"""The shortest token that is accepted."""


@dataclass(frozen=True)
class Limits:
    """How much a server accepts; what goes beyond a limit is refused with a status of 4xx, or of 503 if it is busy.

    Attributes:
        upload_bytes: the largest body of a request.
        upload_pixels: the largest width x height of an uploaded image, which is checked before it is decoded.
        upload_s: seconds in which the whole body of a request has to arrive.
        head_s: seconds in which the head of a request has to arrive, and after which an idle connection is closed.
        answer_s: seconds after which a question that has no answer yet is given up.
        stall_s: seconds for which a client may read nothing of a reply.
        stop_s: seconds that requests in progress have to end when the server stops.
        rate: questions per second and client, on average; other requests may be twenty times as many. 0 is no limit.
        burst: questions that a client may ask at once.
        connections: open connections.
        waiting: questions that wait for the model; further ones are refused.
        together: the largest number of questions that are answered by one call of the model; 1 gathers none.
        top_k: the largest number of hits of one page.
        skip: the largest number of hits before a page.
        queries: the largest number of queries of one request.
        characters: the longest sentence.
        thumbnail_bytes: memory for small images.
        reranked_bytes: memory for the images that the second model has read, so that it reads none of them again soon.
        sentences: embedded sentences that are kept, so that the next page of hits costs no call of the text encoder.
    """

    upload_bytes: int = 20_000_000
    upload_pixels: int = 40_000_000
    upload_s: float = 30.0
    head_s: float = 15.0
    answer_s: float = 30.0
    stall_s: float = 30.0
    stop_s: float = 20.0
    rate: float = 20.0
    burst: float = 60.0
    connections: int = 4000
    waiting: int = 512
    together: int = 64
    top_k: int = 200
    skip: int = 10_000
    queries: int = 64
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
        proxies: addresses of proxies whose word on the client's address is taken.
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
    proxies: tuple[str, ...] = ()
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
        """Whether only this machine reaches the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name
            return False

    @property
    def shown_host(self) -> str:
        """The host as it is written in an address."""
        return f"[{self.host}]" if ":" in self.host else self.host
