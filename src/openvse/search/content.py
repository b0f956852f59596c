"""What a file holds, as a hash: a file that was moved, copied or touched is recognised by it."""

from __future__ import annotations

import hashlib
from pathlib import Path

WHOLE_BYTES = 1 << 24
"""A larger file is hashed by its size and by parts at its beginning, middle and end."""

_PART = 1 << 20


def content_hash(path: Path, size: int) -> bytes | None:
    """Return a hash of a file's content, 16 bytes; None where the file cannot be read.

    Args:
        path: the file.
        size: its bytes, as they were when it was looked at.
    """
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    starts = (0,) if size <= WHOLE_BYTES else (0, size // 2, size - _PART)
    try:
        with path.open("rb", buffering=0) as file:
            for start in starts:
                file.seek(start)
                left = size if len(starts) == 1 else _PART
                while left > 0 and (block := file.read(min(left, _PART))):
                    digest.update(block)
                    left -= len(block)
    except OSError:
        return None
    return digest.digest()
