"""A cache that is bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

ValueT = TypeVar("ValueT")


class ByteCache(Generic[ValueT]):
    """Values by key; the least recently used ones are dropped when there are too many bytes.

    Several threads may use it.

    Args:
        limit: the largest number of bytes in all.
        size: returns the number of bytes of a value.
    """

    def __init__(self, limit: int, size: Callable[[Any], int] = len) -> None:
        self._limit, self._size, self._bytes = limit, size, 0
        self._values: OrderedDict[Hashable, ValueT] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many bytes are kept."""
        return self._bytes

    def find(self, key: Hashable) -> ValueT | None:
        """Return what is kept under a key, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def keep(self, key: Hashable, value: ValueT) -> None:
        """Keep a value; what the key had before stays, as several threads may make the same."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._bytes += self._size(value)
            while self._bytes > self._limit:
                _, gone = self._values.popitem(last=False)
                self._bytes -= self._size(gone)

    def get(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """Return what is kept under a key, or make and keep it."""
        value = self.find(key)
        if value is None:
            value = make()
            self.keep(key, value)
        return value
