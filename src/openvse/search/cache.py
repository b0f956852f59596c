"""A cache bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

ValueT = TypeVar("ValueT")


class ByteCache(Generic[ValueT]):
    """A cache of ``limit`` bytes that drops the least recently used values. Several threads may use it."""

    def __init__(self, limit: int, size: Callable[[Any], int] = len) -> None:
        self._limit, self._size, self._bytes = limit, size, 0
        self._values: OrderedDict[Hashable, ValueT] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of bytes in the cache."""
        return self._bytes

    def find(self, key: Hashable) -> ValueT | None:
        """Return the value of a key, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def keep(self, key: Hashable, value: ValueT) -> None:
        """Store a value, unless another thread has stored one for the key."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._bytes += self._size(value)
            while self._bytes > self._limit:
                _, gone = self._values.popitem(last=False)
                self._bytes -= self._size(gone)
