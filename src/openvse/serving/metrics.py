"""What a server counts, in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOGETHER = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counters of one server.

    Attributes:
        requests: answered requests by route, method and status.
        seconds: how long the answers took, by route.
        together: how many questions were answered by one call of the model.
        refused: refused requests by reason.
        reloads: reloads of the index by outcome.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = ("route", "method", "status")
        self.requests = Counter(
            "openvse_requests", "Requests that were answered.", labels, registry=self._registry
        )
        self.seconds = Histogram(
            "openvse_request_seconds",
            "Seconds from the head of a request to the end of its reply.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.together = Histogram(
            "openvse_gathered_queries",
            "Queries that one call of the model answered.",
            buckets=_TOGETHER,
            registry=self._registry,
        )
        self.refused = Counter(
            "openvse_refused", "Requests that were refused.", ("reason",), registry=self._registry
        )
        self.reloads = Counter(
            "openvse_reloads", "Reloads of the index.", ("outcome",), registry=self._registry
        )

    def watch(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a number that is looked up when the metrics are read."""
        Gauge(f"openvse_{name}", description, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """Return everything in the text format of Prometheus."""
        return generate_latest(self._registry)
