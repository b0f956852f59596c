"""Processes that decode the pictures of clients. A process that takes too long or much memory is ended, alone."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from PIL import Image

from openvse.errors import BadImageError, OpenVSEError
from openvse.media.images import pixel_limit, read_image, read_page
from openvse.media.names import known_formats
from openvse.media.videos import read_poster
from openvse.registry import load_plugin, loaded_plugins
from openvse.serving.batching import BusyError, going_on

LARGE_PX = 1280
"""The longer side of the image in the panel of the page."""

QUERY_PX = 800
"""The longer side of an image that is kept for searches. Models read smaller images."""

_SIDE = 750  # of an upload that may be decoded smaller: a photograph of 12 megapixels at half its sides
_LEAST_SIDE, _LEAST_QUALITY = 64, 40  # of a picture that is made smaller to fit into a message
_MEMORY = 1 << 30, 24  # bytes of a process, and for each pixel that may be decoded
_PROGRAM = "import os; os.nice(5); from openvse.serving.decoding import main; main()"  # it stands back behind searches
_KEPT = str(1 << 25)  # bytes that the GNU library keeps for the next picture
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": _KEPT, "MALLOC_TRIM_THRESHOLD_": _KEPT}
_PIPE = 1 << 20  # bytes that pass without a change of processes
_SECRETS = ("OPENVSE_TOKEN", "OPENVSE_QDRANT_API_KEY", "PGPASSWORD")


class Decoders:
    """Processes that decode, each for one picture at a time. They start with ``begin``, or when they are first needed.

    The memory that a picture takes is bounded by the pixels that may be decoded, and its time by ``seconds``. A process
    that exceeds either ends, or crashes, fails that picture alone.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self._places, self._seconds = asyncio.Semaphore(count), seconds
        self._threads = ThreadPoolExecutor(count, "openvse-decode")
        self._count, self._idle = count, list[_Decoder]()

    def begin(self) -> None:
        """Start all processes, so that no picture waits until one has."""
        with suppress(OSError):  # they are tried again when they are needed
            self._idle += [_Decoder() for _ in range(self._count)]

    async def begun(self) -> None:
        """Wait until the processes that ``begin`` started can decode."""
        loop, nothing = asyncio.get_running_loop(), {"kind": "query", "max_pixels": 1}
        asked = [loop.run_in_executor(self._threads, each.ask, nothing, b"") for each in self._idle]
        await asyncio.gather(*asked, return_exceptions=True)  # what fails then fails its picture

    async def decoded(self, task: Mapping[str, Any], content: bytes) -> Any:
        """Do a task of ``decode`` in a process. Raise BadImageError if a picture cannot be used, or takes too long.

        A task that has begun goes on when nobody waits for it any more: to end its process would cost more.
        """
        await self._places.acquire()
        told, decoded = await going_on(self._places, asyncio.create_task(self._decoded(task, content)))
        if "error" in told:
            raise BadImageError(told["error"])
        return decoded

    async def _decoded(self, task: Mapping[str, Any], content: bytes) -> tuple[Mapping[str, Any], Any]:
        loop = asyncio.get_running_loop()
        try:
            decoder = self._idle.pop(0) if self._idle else await loop.run_in_executor(self._threads, _Decoder)
        except OSError as error:
            raise BusyError("the server starts no decoder now: try again in a moment") from error
        try:
            async with asyncio.timeout(self._seconds):
                answer = await loop.run_in_executor(self._threads, decoder.ask, task, content)
        except BaseException as error:
            decoder.kill()  # the thread that asks it is free then, too
            self._threads.submit(decoder.end)
            with suppress(OSError):
                self._idle.append(_Decoder())  # it has started when it is needed
            if isinstance(error, TimeoutError):
                late = f"it is not decoded within {self._seconds:g} seconds: make it smaller"
                raise SlowImageError(late) from error
            if isinstance(error, OSError):
                raise BadImageError("its decoder failed: save it in another format") from error
            raise
        self._idle.append(decoder)
        return answer

    def close(self) -> None:
        """End the processes."""
        for each in self._idle:
            each.kill()
            each.end()
        self._threads.shutdown(wait=False, cancel_futures=True)


class SlowImageError(BadImageError):
    """The decoding of a picture was ended, because it took too long."""


def plugins_of_formats() -> list[Path]:
    """Return the plug-ins that add a format. Others may import PyTorch, for which a decoder has no memory."""
    modules = {getattr(each.opens, "__module__", "") for each in known_formats()}
    return [path for path in loaded_plugins() if f"openvse_plugin_{path.stem}" in modules]


class _Decoder:
    """A process that decodes. It gets no secrets, and imports nothing from the folder where the server runs."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, *map(str, plugins_of_formats())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # decoders write there what a file says
            env=_ALLOCATOR | {name: value for name, value in os.environ.items() if name not in _SECRETS},
            process_group=0,  # Ctrl-C is for the server
            pipesize=_PIPE,
        )

    def ask(self, task: Mapping[str, Any], content: bytes) -> tuple[Mapping[str, Any], Any]:
        """Send a task and its bytes, and return the reply and its bytes. Raise OSError if the process ends."""
        assert self._process.stdin is not None and self._process.stdout is not None
        _write(self._process.stdin, task, content)
        told, made = _read(self._process.stdout)
        return told, Image.frombytes("RGB", told["size"], made) if "size" in told else made

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def end(self) -> None:
        """Wait until the process has ended, and close its pipes."""
        with suppress(OSError), self._process:
            pass


def _write(file: IO[bytes], told: Mapping[str, Any], content: bytes) -> None:
    file.write(json.dumps({**told, "bytes": len(content)}).encode() + b"\n")
    file.write(content)
    file.flush()


def _read(file: IO[bytes]) -> tuple[Mapping[str, Any], bytes]:
    """Return the next message. Raise BrokenPipeError if the other side has ended."""
    line = file.readline()
    told = json.loads(line) if line.endswith(b"\n") else {"bytes": 1}
    content = file.read(told["bytes"])
    if len(content) < told["bytes"]:
        raise BrokenPipeError("the other process has ended")
    return told, content


def decode(task: Mapping[str, Any], content: bytes) -> tuple[Mapping[str, Any], bytes]:
    """Do a task, and return what is told of the result, and its bytes.

    ``small`` makes a WebP of a file, of a page of a TIFF or of the middle of a clip. ``query`` makes a small file of an
    uploaded picture, which every browser can show, and ``pixels`` its pixels.
    """
    encoded = io.BytesIO()
    if task["kind"] == "small":
        side, quality, most = task["side"], task["quality"], task["most"]
        path, page = Path(os.fsdecode(content)), task["page"]
        image = read_poster(path, shorter_side=side) if page == 1 else read_page(path, page)
        while True:
            image.thumbnail((side, side))
            image.save(encoded, "WEBP", quality=quality)
            if most is None or encoded.tell() <= most or side < _LEAST_SIDE:
                return {}, encoded.getvalue()
            side, quality = (side, quality - 20) if quality > _LEAST_QUALITY else (side * 4 // 5, quality)
            encoded = io.BytesIO()
    image = read_image(content, max_pixels=task["max_pixels"], shorter_side=_SIDE)
    if task["kind"] == "pixels":
        return {"size": image.size}, image.tobytes()
    if max(image.size) <= QUERY_PX // 2:
        image.save(encoded, "PNG")
    else:
        image.thumbnail((QUERY_PX, QUERY_PX))
        image.save(encoded, "JPEG", quality=95, subsampling=0)
    return {}, encoded.getvalue()


def main() -> None:
    """Do tasks from the standard input until it ends. The arguments are plug-ins, which may add formats."""
    for path in sys.argv[1:]:
        load_plugin(Path(path))
    with suppress(ImportError, ValueError, OSError):
        import resource

        most = _MEMORY[0] + _MEMORY[1] * pixel_limit()
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    encoded = io.BytesIO()
    Image.new("RGB", (8, 8)).save(encoded, "WEBP")
    read_image(encoded.getvalue())  # what the libraries load for their first picture is there then
    with suppress(BrokenPipeError):
        while True:  # nothing of a picture stays while the next one is waited for
            _write(sys.stdout.buffer, *_answer(*_read(sys.stdin.buffer)))


def _answer(task: Mapping[str, Any], content: bytes) -> tuple[Mapping[str, Any], bytes]:
    try:
        return decode(task, content)
    except OpenVSEError as error:
        return {"error": str(error)}, b""
