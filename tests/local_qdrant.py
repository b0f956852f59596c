"""Qdrant in this process: the client's own mode, in place of the server at ``LOCAL``."""

from __future__ import annotations

from functools import cache

import pytest
from qdrant_client import QdrantClient

from openvse_engines import qdrant

LOCAL = "http://local.invalid:6333"


@cache
def _client() -> QdrantClient:
    client = QdrantClient(":memory:")
    client.close = lambda grpc_grace=None: None  # type: ignore[method-assign]
    return client


@pytest.fixture(autouse=True)
def local_qdrant(monkeypatch) -> None:
    """Connect to the client's own mode where a test names ``LOCAL``."""
    connected = qdrant._connected
    monkeypatch.setattr(qdrant, "_connected", lambda url: _client() if url == LOCAL else connected(url))
    monkeypatch.setenv("OPENVSE_ENGINE_URL", LOCAL)  # an index alone names no server
