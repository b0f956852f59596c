"""The layers around the application: counters and headers of replies, access, and the bounds of request bodies."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openvse.serving.batching import CLIENT
from openvse.serving.settings import Limits, Settings

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOGETHER = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class RequestMetrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"openvse_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"openvse_{name}", about, labels, buckets=buckets, registry=registry)

        self.requests = counter("requests", "Requests that were answered.", "route", "method", "status")
        seconds = "Seconds from the head of a request to the end of its reply."
        self.seconds = histogram("request_seconds", seconds, _SECONDS, "route")
        self.together = histogram("gathered_queries", "Queries that one call of the model answered.", _TOGETHER)
        self.refused = counter("refused", "Requests that were refused.", "reason")
        self.reloads = counter("reloads", "Reloads of the index.", "outcome")

    def watch(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is looked up when the metrics are read."""
        Gauge(f"openvse_{name}", description, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


COOKIE = "openvse_session"

UPLOADS = ("/api/search/image", "/api/images", "/api/ask")
"""Paths that take an image."""

_SMALL_BYTES = 4000
_LEFT = 499  # what proxies count for a client that left before the reply
_SESSIONS = 10_000

OPEN_PATHS = ("/", "/teach", "/health", "/ready", "/session")
"""Paths that need no token, besides the files of the page. Their replies contain nothing about the images."""

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": _PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Replies:
    """Adds the headers of every reply, counts requests by route, method and status, and answers HEAD as GET.

    Slashes that a client adds at the end of a path or repeats are dropped.
    """

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, is_head = time.perf_counter(), _LEFT, scope["method"] == "HEAD"
        inner = {**scope, "path": "/" + "/".join(filter(None, scope["path"].split("/")))}
        if is_head:
            inner |= {"method": "GET", "is_head": True}

        async def with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        try:
            await self._app(inner, receive, with_headers)
        finally:
            route = getattr(inner.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            self._metrics.requests.labels(route, method, status).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - began)


class Guard:
    """Refuses requests without the token, from other web sites, and to a name that is not this server's."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: RequestMetrics, sessions: Sessions) -> None:
        self._app, self._settings, self._metrics, self._sessions = app, settings, metrics, sessions
        self._names = {"localhost", "127.0.0.1", "::1", settings.host, *settings.name}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        refusal = self._refusal(scope["path"], Headers(scope=scope)) if scope["type"] == "http" else None
        if refusal is None:
            CLIENT.set((scope.get("client") or ("",))[0])
            await self._app(scope, receive, send)
            return
        status, reason, message = refusal
        self._metrics.refused.labels(reason).inc()
        headers = {"connection": "close"} | ({"www-authenticate": "Bearer"} if status == 401 else {})
        await JSONResponse({"error": message}, status, headers)(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str, str] | None:
        """Return status, reason and message of a refusal, or None to let the request pass."""
        if not self._is_named(headers.get("host", "")):
            return 421, "host", "the server does not go by this name: start it with --name NAME"
        if path.startswith(("/api", "/session", "/mcp")) and is_foreign(headers):
            return 403, "site", "pages of other web sites may not ask this server"
        is_open = path in OPEN_PATHS or path.startswith("/page/") or not self._settings.token
        if is_open or is_bearer(headers, self._settings.token) or self._sessions.holds(session_in(headers)):
            return None
        return 401, "token", "the token is missing or wrong: send it as 'Authorization: Bearer TOKEN'"

    def _is_named(self, host: str) -> bool:
        """Return whether a client addresses the server by a name of this machine.

        A page of another web site whose name was made to point here (DNS rebinding) sends its own name. A token stops
        it too, and a server that listens on all addresses does not know its names. (``TrustedHostMiddleware`` of
        Starlette answers 400 in plain text, without a remedy.)
        """
        if self._settings.token or "*" in self._names or self._settings.host in ("0.0.0.0", "::"):
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        return name.strip("[]").lower() in self._names


def is_foreign(headers: Headers) -> bool:
    """Return whether a page of another web site asks. Browsers without this header name the site of the page."""
    if (site := headers.get("sec-fetch-site")) is not None:
        return site in ("cross-site", "same-site")
    origin, host = headers.get("origin"), headers.get("host", "").lower()
    named = (origin or "").lower().partition("://")[2]
    return origin is not None and host not in (named, named.rpartition(":")[0])  # a proxy may omit the port


def is_bearer(headers: Headers, token: str) -> bool:
    """Return whether a request shows the token itself."""
    kind, _, given = headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and is_token(given.strip(), token)


def is_token(given: str, token: str) -> bool:
    """Return whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def session_in(headers: Headers) -> str:
    """Return the name of the session in the cookie of a request, or ""."""
    return cookie_parser(headers.get("cookie", "")).get(COOKIE, "")


class Sessions:
    """The sessions of the page. Each begins with the token, and ends in time, by request, or with the server.

    Only digests of their names are kept. Beyond 10,000 the oldest end.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._ends = seconds, OrderedDict[bytes, float]()

    def begin(self) -> str:
        """Begin a session, and return its name, which is the value of the cookie."""
        name, now = secrets.token_urlsafe(32), time.monotonic()
        while self._ends and (len(self._ends) >= _SESSIONS or next(iter(self._ends.values())) <= now):
            self._ends.popitem(last=False)
        self._ends[_digest(name)] = now + self._seconds
        return name

    def holds(self, name: str) -> bool:
        """Return whether a session of this name is in progress."""
        return self._ends.get(_digest(name), 0.0) > time.monotonic()

    def end(self, name: str) -> None:
        """End a session."""
        self._ends.pop(_digest(name), None)

    def end_all(self) -> None:
        """End all sessions."""
        self._ends.clear()


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "replace")).digest()


class Bounds:
    """Refuses bodies that are too large or too slow, one by one and in sum."""

    def __init__(self, app: ASGIApp, limits: Limits, metrics: RequestMetrics) -> None:
        self._app, self.limits, self.metrics = app, limits, metrics
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        body = _Body(receive, self, self._most(scope["path"], headers.get("content-type", "")))
        try:
            body.check_length(headers.get("content-length", ""))
            await self._app(scope, body, send)
        except HTTPException as error:
            await JSONResponse({"error": error.detail}, error.status_code, error.headers)(scope, receive, send)
        finally:
            self.held -= body.num_bytes

    def _most(self, path: str, kind: str) -> int:
        """Return the size of the largest body that a path takes: parsing JSON takes much more time than an upload."""
        if path in UPLOADS and kind.lower().startswith("multipart/form-data"):
            return self.limits.upload_bytes
        is_json = path.startswith(("/api", "/mcp")) and path not in UPLOADS
        return min(self.limits.upload_bytes, self.limits.json_bytes if is_json else _SMALL_BYTES)


class _Body:
    """The body of a request as it arrives. The application answers the HTTPException of a refused one."""

    def __init__(self, receive: Receive, bounds: Bounds, most: int) -> None:
        self._receive, self._bounds, self._most = receive, bounds, most
        self._ends = time.monotonic() + bounds.limits.upload_s
        self._is_whole = False
        self.num_bytes = 0

    def check_length(self, length: str) -> None:
        """Refuse a body by the length that its head announces."""
        if length.isdigit() and int(length[:20]) > self._most:
            self._refuse_size()

    async def __call__(self) -> Message:
        """Return the next part."""
        if self._is_whole:  # the next message is that the client has gone
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._ends - time.monotonic()))
        except TimeoutError:
            self._refuse(408, "slow", "the body of the request did not arrive in time")
        size = len(message.get("body", b""))
        self.num_bytes += size
        self._bounds.held += size
        self._is_whole = not message.get("more_body", False)
        if self.num_bytes > self._most:
            self._refuse_size()
        limits = self._bounds.limits
        if size and self._bounds.held > limits.bodies * limits.upload_bytes:
            self._refuse(503, "bodies", "too much is being uploaded at once: try again in a moment")
        return message

    def _refuse_size(self) -> NoReturn:
        most = f"{self._most / 1e6:g} MB" if self._most >= 1e6 else f"{self._most / 1000:g} kB"
        self._refuse(413, "size", f"the body is larger than {most}, the most that this server takes here")

    def _refuse(self, status: int, reason: str, message: str) -> NoReturn:
        self._bounds.metrics.refused.labels(reason).inc()
        raise HTTPException(status, message, {"connection": "close"})
