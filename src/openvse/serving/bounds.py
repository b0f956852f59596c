"""Bounds of one request: the size of its body, and the time that its client may take."""

from __future__ import annotations

import asyncio
import time
from typing import NoReturn

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openvse.serving.metrics import Metrics
from openvse.serving.settings import Limits


class RefusedBodyError(Exception):
    """The body of a request is too large or arrives too slowly.

    Args:
        status: of the reply.
        reason: one word.
        message: for the client.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Bounds:
    """Refuses bodies that are too large or too slow, and leaves clients that do not read what they asked for.

    Args:
        app: what answers the requests.
        limits: sizes and times.
        metrics: counts what is refused.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            if (
                body.refusal is not None and not has_begun
            ):  # what parses forms would tell of a body that it cannot read
                raise body.refusal
            has_begun = True
            await asyncio.wait_for(send(message), self._limits.stall_s)

        body = _Body(receive, self._limits)
        try:
            body.check_length(Headers(scope=scope).get("content-length", ""))
            await self._app(scope, body, sending)
        except RefusedBodyError as error:
            self._metrics.refused.labels(error.reason).inc()
            if not has_begun:
                reply = JSONResponse({"error": str(error)}, error.status, {"connection": "close"})
                await reply(scope, receive, send)
        except TimeoutError:  # the client reads nothing: the server closes the connection without the rest
            self._metrics.refused.labels("stalled").inc()


class _Body:
    """The body of a request as it arrives."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        self._bytes, self._ends = 0, time.monotonic() + limits.upload_s
        self._is_whole = False
        self.refusal: RefusedBodyError | None = None

    def check_length(self, length: str) -> None:
        """Refuse a body by the length that its head announces."""
        if length.isdigit() and int(length[:20]) > self._limits.upload_bytes:
            self._refuse_size()

    async def __call__(self) -> Message:
        """Return the next part."""
        if self._is_whole:  # what is waited for now is that the client goes away
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._ends - time.monotonic()))
        except TimeoutError:
            self._refuse(RefusedBodyError(408, "slow", "the body of the request did not arrive in time"))
        self._bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self._bytes > self._limits.upload_bytes:
            self._refuse_size()
        return message

    def _refuse_size(self) -> NoReturn:
        most = self._limits.upload_bytes / 1e6
        message = f"the body is larger than {most:g} MB, the most that this server takes"
        self._refuse(RefusedBodyError(413, "size", message))

    def _refuse(self, error: RefusedBodyError) -> NoReturn:
        self.refusal = error
        raise error
