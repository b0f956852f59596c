"""Parts of files, which a browser asks for when somebody seeks in a clip (RFC 9110, section 14)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import IO

import anyio
from starlette.responses import JSONResponse, Response, StreamingResponse

_CHUNK = 1 << 18
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def asked_part(header: str, size: int) -> range | None:
    """Return the bytes that a ``Range`` header asks for; None for all, for several parts, or nonsense.

    An empty range means that the file has none of them.
    """
    found = _RANGE.fullmatch(header.replace(" ", ""))
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:  # the last so many
        return range(max(0, size - int(found[2])), size)
    first = int(found[1])
    last = min(int(found[2]) if found[2] else size - 1, size - 1)
    if found[2] and int(found[2]) < first:
        return None
    return range(first, last + 1)


def file_reply(
    file: IO[bytes], size: int, tag: str, headers: dict[str, str], kind: str, asked: str
) -> Response:
    """Return a file, or the part of it that is asked for; it is closed at the end.

    Args:
        file: the file, open for reading.
        size: bytes in it.
        tag: its entity tag, with quotation marks.
        headers: further headers.
        kind: its media type.
        asked: the ``Range`` header, "" where the whole file is to be sent.
    """
    headers = {**headers, "accept-ranges": "bytes", "etag": tag}
    part = asked_part(asked, size) if asked else None
    if part is not None and not len(part):
        file.close()
        there = {"content-range": f"bytes */{size}"}
        return JSONResponse(
            {"error": f"the file has {size:,} bytes, and none of those asked for"}, 416, there
        )
    chosen = range(size) if part is None else part
    headers["content-length"] = str(len(chosen))
    if part is not None:
        headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    return StreamingResponse(_content(file, chosen), 200 if part is None else 206, headers, kind)


async def _content(file: IO[bytes], part: range) -> AsyncIterator[bytes]:
    left = len(part)
    async with anyio.wrap_file(file) as opened:
        await opened.seek(part.start)
        while left and (chunk := await opened.read(min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk
