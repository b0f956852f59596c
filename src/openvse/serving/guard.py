"""Who may ask, how often, and what no reply goes without; the layers around the application."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openvse.serving.metrics import Metrics
from openvse.serving.settings import Settings

COOKIE = "openvse_session"

OPEN_PATHS = ("/", "/health", "/ready", "/session")
"""What is answered without a token, besides the files of the page: nothing of it says anything about the images."""

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

_CHEAP = 0.05
_LONGEST_HEAD = 32_768
_CLIENTS = 10_000
_WRONG_TOKEN = 5.0


class Replies:
    """Adds the headers that every reply has, and counts requests by route, method and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            await self._app(scope, receive, with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            self._metrics.requests.labels(route, method, status).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - began)


class Guard:
    """Refuses requests of strangers, of other web sites, and of clients that ask too much.

    Args:
        app: what answers the others.
        settings: token, names of this machine, and rates.
        metrics: counts what is refused.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._rates = Rates(settings.limits.rate, settings.limits.burst)
        self._names = {"localhost", "127.0.0.1", "::1", settings.host, *settings.names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, reason, message = refusal
        self._metrics.refused.labels(reason).inc()
        extra = {"connection": "close"}
        if status == 401:
            extra["www-authenticate"] = "Bearer"
        if status == 429:
            extra["retry-after"] = "1"
        await JSONResponse({"error": message}, status, extra)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str, str] | None:
        """Return status, reason and message of a refusal; None lets the request pass."""
        path, client = scope["path"], (scope.get("client") or ("",))[0]
        if not self._is_named(headers.get("host", "")):
            message = "the server does not go by this name: start it with --name NAME"
            return 421, "host", message
        if sum(len(name) + len(value) for name, value in headers.raw) > _LONGEST_HEAD:
            return 431, "head", "the head of the request is too long"
        if path.startswith("/api") and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return 403, "site", "pages of other web sites may not ask this server"
        if not self._rates.takes(client, cost_of(scope)):
            return 429, "rate", "too many requests: wait a second, and ask again"
        is_open = path in OPEN_PATHS or path.startswith("/page/")
        if is_open or not self._settings.token or self._is_known(headers):
            return None
        self._rates.takes(client, _WRONG_TOKEN)
        return 401, "token", "the token is missing or wrong: send it as 'Authorization: Bearer TOKEN'"

    def _is_named(self, host: str) -> bool:
        """Return whether a client addresses the server by a name of this machine.

        A page of another web site whose name was made to point here (DNS rebinding) gives its own name. A token stops
        it too, and a server that listens on all addresses does not know its names.
        """
        if self._settings.token or "*" in self._names or self._settings.host in ("0.0.0.0", "::"):
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        return name.strip("[]").lower() in self._names

    def _is_known(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return is_token(given.strip(), self._settings.token)
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and is_token(cookie.value, session_of(self._settings.token))


def is_token(given: str, token: str) -> bool:
    """Return whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def session_of(token: str) -> str:
    """Return what the page's cookie holds: it proves that the token is known, and does not tell it."""
    return hmac.new(token.encode(), b"openvse session", hashlib.sha256).hexdigest()


def cost_of(scope: Scope) -> float:
    """Return what a request costs its client: 1 for a question to a model, little for everything else."""
    path = scope["path"]
    asks = ("/api/search", "/api/ask", "/session")
    return 1.0 if path.startswith(asks) or path.endswith(("/similar", "/looked", "/ask")) else _CHEAP


class Rates:
    """How much each client may still ask: an allowance that grows with time up to its largest value.

    Args:
        rate: how much it grows in a second; 0 is no limit.
        burst: the largest allowance.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def takes(self, client: str, cost: float, now: float | None = None) -> bool:
        """Take a cost from the allowance of a client; return False, and take nothing, where it is used up."""
        if not self._rate:
            return True
        now = time.monotonic() if now is None else now
        left, then = self._left.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        enough = left >= min(cost, self._burst)
        self._left[client] = (left - cost if enough else left), now
        if len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        return enough
