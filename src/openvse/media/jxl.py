"""The header of a JPEG XL file before decoding: its size (ISO/IEC 18181-1) and its boxes (ISO/IEC 18181-2)."""

from __future__ import annotations

from collections.abc import Iterator

from openvse.errors import BadImageError

_CODESTREAM, _CONTAINER = b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n"
_LENGTH_BITS = (9, 13, 18, 30)
_RATIOS = ((1, 1), (1, 1), (6, 5), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))


def is_jxl(start: bytes) -> bool:
    """Return whether a file begins like one."""
    return start.startswith((_CODESTREAM, _CONTAINER))


def boxes_of(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the type and the content of each box of a file. A bare codestream has none."""
    at = len(content) if content.startswith(_CODESTREAM) else 0
    while at + 8 <= len(content):
        size, head = int.from_bytes(content[at : at + 4], "big"), 8
        if size == 1:
            size, head = int.from_bytes(content[at + 8 : at + 16], "big"), 16
        end = at + size if size else len(content)
        if end < at + head:
            return
        yield content[at + 4 : at + 8], content[at + head : end]
        at = end


def size_of(content: bytes) -> tuple[int, int]:
    """Return width and height of a file, before any turn. Raise BadImageError if it has no codestream."""
    parts = (data[4 * (kind == b"jxlp") :] for kind, data in boxes_of(content) if kind in (b"jxlc", b"jxlp"))
    stream = content if content.startswith(_CODESTREAM) else b"".join(part[:12] for part in parts)
    if len(stream) < 12:
        raise BadImageError("it is a JPEG XL file that is truncated or damaged")
    bits = int.from_bytes(stream[2:12], "little")

    def take(count: int) -> int:
        nonlocal bits
        value, bits = bits & ((1 << count) - 1), bits >> count
        return value

    is_small = take(1)

    def length() -> int:
        return 8 * (take(5) + 1) if is_small else take(_LENGTH_BITS[take(2)]) + 1

    height, ratio = length(), take(3)
    across, down = _RATIOS[ratio]
    return (height * across // down if ratio else length()), height
