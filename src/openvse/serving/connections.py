"""Connections of a server. A client that stalls keeps no place from others."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any

import h11
from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from openvse.serving.settings import Limits

AT_ONCE = 32
"""Connections accepted in one go, so that connected clients get a turn in between."""

_BACKLOG = 2048
_ROOM = 16


class PatientServer(Server):
    """A server that accepts few connections at a time, while many may wait."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen. asyncio lets as many wait as it accepts in one go."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)


class Connection(H11Protocol):
    """A connection that is closed if a head takes too long, or if others need its place while it waits for its client.

    ``head_s`` and ``connections`` of the limits count here. The other arguments are uvicorn's.
    """

    def __init__(
        self, config: Any, server_state: Any, app_state: Any, _loop: Any = None, *, limits: Limits
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits, self._since = limits, self.loop.time()
        self._late: asyncio.TimerHandle | None = None

    @property
    def _is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _waits(self) -> bool:
        """Whether the next step is the client's: the rest of a head or a body, or reading a reply."""
        return self._is_idle or self.conn.their_state is h11.SEND_BODY or self.flow.write_paused

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the first head its time, and make room for the next connection."""
        super().connection_made(transport)
        self._time_head()
        if len(self.connections) > self._limits.connections - 2 * self._room:  # the closed ones take a moment
            self._make_room()

    def handle_events(self) -> None:
        """Give a head that has begun its time, which ends when the head is whole."""
        super().handle_events()
        self._time_head()

    def on_response_complete(self) -> None:
        """Note the time of the answer to the client."""
        self._since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time of the head."""
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def _time_head(self) -> None:
        if not self._is_idle and self._late is not None:
            self._late.cancel()
            self._late = None
        elif self._is_idle and self._late is None:
            self._late = self.loop.call_later(self._limits.head_s, self.timeout_keep_alive_handler)

    @property
    def _room(self) -> int:
        return max(1, self._limits.connections // _ROOM)

    def _make_room(self) -> None:
        """Close those that have waited longest for their clients, first of the address that has most of them."""
        others = (each for each in self.connections if isinstance(each, Connection) and each is not self)
        waiting = [each for each in others if each._waits]
        count = Counter(each._address for each in waiting)
        waiting.sort(key=lambda each: (-count[each._address], each._since))
        for each in waiting[: self._room]:
            self.connections.discard(each)
            each.transport.abort()
