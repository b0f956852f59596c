"""The server itself: connections that wait too long are closed, and signals end it in order."""

from __future__ import annotations

import asyncio
from types import FrameType

from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from openvse.serving.settings import Limits


def patient_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return a protocol for uvicorn that closes a connection whose request does not arrive in time.

    uvicorn itself only closes a connection that has had an answer and then is silent; one that never sends the head
    of a request, or a letter now and then, would stay for good.
    """

    class PatientProtocol(H11Protocol):
        """HTTP/1.1 with a bounded time for the head of each request, and a bounded number of connections."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Take a new connection, or close it if there are too many."""
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                self.connections.discard(self)
                transport.abort()
                return
            self._watch()

        def data_received(self, data: bytes) -> None:
            """Take what has arrived."""
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            """Wait for the next request."""
            super().on_response_complete()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget the connection."""
            self._forget()
            super().connection_lost(exc)

        def _watch(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()
            elif self._deadline is None and not self.transport.is_closing():
                self._deadline = self.loop.call_later(limits.head_s, self.transport.abort)

        def _forget(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return PatientProtocol


class OrderlyServer(Server):
    """A server that a first signal asks to end what it has begun, and a second one to end at once.

    uvicorn would raise the signal again afterwards, so that an orderly end would look like a failure.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def make_server(app: object, limits: Limits, proxies: tuple[str, ...]) -> OrderlyServer:
    """Return a server of an application; its ``run`` takes the sockets to listen on."""
    return OrderlyServer(
        Config(
            app,  # type: ignore[arg-type]
            http=patient_protocol(limits),
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            timeout_keep_alive=max(1, round(min(5.0, limits.head_s))),
            timeout_graceful_shutdown=round(limits.stop_s),
            backlog=2048,
        )
    )
