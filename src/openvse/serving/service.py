"""The work of a server, without HTTP: searches, re-ranking, explanations, answers, and updates of the index."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from PIL import Image
from starlette.datastructures import UploadFile

from openvse.errors import EngineError, ModelError, OpenVSEError
from openvse.media.images import read_image
from openvse.media.videos import ClipSource, read_poster
from openvse.output.thumbnails import THUMBNAIL_PX
from openvse.runtime import OnnxModel
from openvse.search import Chances, Query, captions_beside
from openvse.search.kept import Kept
from openvse.serving.batching import BusyError, Embedder, Gatherer, RememberingModel
from openvse.serving.catalog import MissingError, readable
from openvse.serving.layers import Metrics
from openvse.serving.schemas import LARGEST_PAGE
from openvse.serving.searching import Ask, Found, check_precision_reachable, rerank, search_together
from openvse.serving.server import Settings
from openvse.serving.sources import IndexSource, Source

if TYPE_CHECKING:  # an exported model is served without PyTorch
    from openvse.model import TwoTower
    from openvse.search import HitReranker
    from openvse.vqa.answerer import Answerer

_logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

LARGE_PX = 1280
"""The longer side of the image in the panel of the page."""

_EXAMPLES = 6
_SLOW_WAITING = 32
_WORDS = range(3, 10)


class Service:
    """An index or an engine, and its models, for the requests of an event loop.

    One thread searches, and batches the questions that arrive meanwhile. Another one does slow work (re-ranking,
    explanations, answers), so that it does not delay searches. Two decode images.

    Args:
        source: the folder of an index, or another ``Source``.
        model: the model that made its embeddings; an exported one has no map of what it looked at.
        settings: how the server behaves.
        reranker: a second model, which ranks the first hits again.
        answerer: a model that answers questions about images.
        names: names of the models for display, by role: ``model``, ``rerank`` and ``answer``.

    Raises:
        EngineError: the engine cannot be reached.
        IndexFormatError: the index is missing, damaged, or made by another model.
        ModelError: the second model, or the one that answers, cannot read images.
    """

    def __init__(
        self,
        source: Path | Source,
        model: Embedder,
        settings: Settings,
        *,
        reranker: TwoTower | None = None,
        answerer: Answerer | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.settings, self.limits = settings, settings.limits
        self.model, self.reranker, self.answerer = model, reranker, answerer
        self.names = dict(names or {})
        self.reads_images = _reads_images(model)
        for other, option in ((reranker, "--rerank"), (answerer, "--answer")):
            if other is not None and not _reads_images(other):
                raise ModelError(
                    f"the model of {option} reads features and no images: give one that has an image network"
                )
        self._source = IndexSource(source) if isinstance(source, Path) else source
        self._remembering = RememberingModel(model, self.limits.sentences)
        self._seen = self._source.state(None)
        self.catalog = self._source.open(self._remembering)
        self.metrics = Metrics()
        self.thumbnails: Kept[bytes] = Kept(self.limits.thumbnail_bytes)
        self.is_ready, self.trouble = False, ""
        self._lost = asyncio.Event()
        self._captions: Mapping[str, Sequence[str]] = {}
        self._uploads = asyncio.Semaphore(self.limits.uploads)
        self._main = ThreadPoolExecutor(1, "openvse-search")
        self._slow = ThreadPoolExecutor(1, "openvse-slow")
        self._decoders = ThreadPoolExecutor(2, "openvse-decode")
        self._num_slow = 0
        self._gatherer: Gatherer[Ask, Found] = Gatherer(
            lambda asks: search_together(self.catalog, asks),
            self._main,
            together=self.limits.together,
            waiting=self.limits.waiting,
            on_call=self.metrics.together.observe,
        )
        self._following: asyncio.Task[None] | None = None
        self.metrics.watch("items", "Items of the index.", lambda: len(self.catalog))
        self.metrics.watch("waiting", "Questions that wait for the model.", lambda: self._gatherer.waiting)
        self.metrics.watch("thumbnail_bytes", "Memory of small images.", lambda: len(self.thumbnails))

    async def start(self) -> None:
        """Read the captions, warm up the model with one query, and begin to follow the index."""
        loop = asyncio.get_running_loop()
        self._captions = await loop.run_in_executor(self._slow, captions_beside, self.catalog.captioned)
        if len(self.catalog):
            await self._gatherer.ask(Ask(Query(text="a photo"), top_k=1), timeout_s=600)
        self._following = asyncio.create_task(self._follow())
        self.is_ready = True

    async def stop(self) -> None:
        """Answer the questions that wait, and end the threads."""
        self.is_ready = False
        if self._following is not None:
            self._following.cancel()
        await self._gatherer.drained()
        self._main.submit(self.catalog.close)
        self._main.shutdown(wait=False)
        for pool in (self._slow, self._decoders):
            pool.shutdown(wait=False, cancel_futures=True)

    async def search(self, asks: Sequence[Ask], *, again: bool = False) -> list[Found]:
        """Return the pages of some queries; with ``again``, re-ranked by the second model.

        Raises:
            OpenVSEError: a query cannot be answered.
            BusyError: too many others wait.
            TimeoutError: there is no answer in time.
        """
        top = self.settings.rerank_top
        for ask in asks:
            check_precision_reachable(self.catalog, ask)
        anew = [again and ask.skip < top for ask in asks]  # the order of later pages does not change
        if again and self.reranker is None:
            raise ModelError(
                "this server has no second model: start it with --rerank MODEL, or leave rerank out"
            )
        wanted = [self._whole(ask) if new else ask for ask, new in zip(asks, anew, strict=True)]
        found = await asyncio.gather(*(self._gatherer.ask(ask, self.limits.answer_s) for ask in wanted))
        return [
            await self.slowly(partial(self._rerank, each, ask)) if new else each
            for each, ask, new in zip(found, asks, anew, strict=True)
        ]

    def lose(self, error: EngineError) -> None:
        """Note that the engine did not answer, so that it is opened again soon."""
        if not self.trouble:
            _logger.warning("%s", error)
            self.trouble = str(error)
        self._lost.set()

    def _whole(self, ask: Ask) -> Ask:
        """Return the question for all hits to re-rank, and at least those of the page."""
        most = max(self.settings.rerank_top, ask.skip + ask.top_k)
        return Ask(ask.query, most, 0, ask.min_score, ask.min_precision, ask.expected, ask.where)

    def _rerank(self, found: Found, ask: Ask) -> Found:
        assert self.reranker is not None
        chances = Chances(self.reranker.calibration, found.searched, ask.expected)
        return rerank(found, ask, self._hit_reranker.with_chances(chances))

    @cached_property
    def _hit_reranker(self) -> HitReranker:
        from openvse.search import HitReranker

        assert self.reranker is not None
        return HitReranker(self.reranker, top=self.settings.rerank_top, keep_bytes=self.limits.reranked_bytes)

    async def slowly(self, work: Callable[[], ResultT]) -> ResultT:
        """Do slow work beside the searches.

        Raises:
            BusyError: too much slow work waits already.
            TimeoutError: it is not done in time.
        """
        if self._num_slow >= _SLOW_WAITING:
            raise BusyError("too many questions wait for an answer: try again in a moment")
        self._num_slow += 1
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._slow, work), self.limits.answer_s)
        finally:
            self._num_slow -= 1

    async def decoding(self, work: Callable[[], ResultT]) -> ResultT:
        """Read or write a file beside the searches; raise TimeoutError if it is not done in time."""
        loop = asyncio.get_running_loop()
        return await asyncio.wait_for(loop.run_in_executor(self._decoders, work), self.limits.answer_s)

    async def looking_up(self, work: Callable[[], ResultT], *, needed: bool = True) -> ResultT:
        """Look something up in the catalog: directly in an index, which is in memory, and on a thread in an engine.

        Args:
            work: what to do.
            needed: whether the work may ask the engine.
        """
        return await self.decoding(work) if needed and self.catalog.about.engine else work()

    @asynccontextmanager
    async def uploaded(self, upload: UploadFile) -> AsyncIterator[ClipSource]:
        """Decode an image that a client sent, and hold one of the places for uploads while it is in use.

        Raises:
            BadImageError: it is no image, or too large.
            TimeoutError: no place was free in time.
        """
        async with asyncio.timeout(self.limits.answer_s):
            await self._uploads.acquire()
        try:
            content = await upload.read()
            yield await self.decoding(partial(read_image, content, max_pixels=self.limits.upload_pixels))
        finally:
            self._uploads.release()

    async def thumbnail(self, key: int, *, large: bool = False) -> bytes:
        """Return an item as a small WebP."""
        catalog = self.catalog

        def made() -> bytes:
            path, name = catalog.file(key), f"{key} {catalog.version(key)} {large}"
            return self.thumbnails.get(name, partial(small_image, path, large=large))

        return await self.decoding(made)

    async def looked(self, image: ClipSource, sentence: str) -> dict[str, Any]:
        """Return how much each part of an image, and each word of a sentence, adds to their score."""
        if isinstance(self.model, OnnxModel):
            raise ModelError(
                "an exported model cannot say what it looked at: serve the model that it was exported from"
            )
        from openvse.serving.looking import look

        return (await self.slowly(partial(look, self.model, image, sentence))).describe()

    async def answer(self, image: ClipSource, question: str) -> dict[str, Any]:
        """Return the answers to a question about an image, and what they came from."""
        model = self.answerer
        if model is None:
            raise ModelError("this server answers no questions: start it with --answer MODEL")
        from openvse.serving.looking import describe_answer
        from openvse.vqa.explain import explain

        return describe_answer((await self.slowly(partial(explain, model, image, [question])))[0])

    def captions(self, key: int) -> list[str]:
        """Return the captions of an item; there may be none."""
        return [*self._captions.get(self.catalog.id_of(key), ())]

    def examples(self) -> list[str]:
        """Return sentences to try: those of the settings, or captions of the images."""
        if self.settings.examples:
            return [*self.settings.examples]
        drawn = random.Random(0)
        names = sorted(self._captions)
        some = drawn.sample(names, min(len(names), 40))
        firsts = [text.strip(" .") for name in some for text in self._captions[name][:1]]
        return [text for text in dict.fromkeys(firsts) if len(text.split()) in _WORDS][:_EXAMPLES]

    def describe(self, *, is_local: bool) -> dict[str, Any]:
        """Return the description of the server for clients.

        Args:
            is_local: whether the client is on this machine; others are not told where engine and folders are.
        """
        about, limits = self.catalog.about, self.limits
        return {
            "title": self.settings.title,
            "items": len(self.catalog),
            "complete": about.is_complete,
            "created": about.created,
            "engine": about.engine if is_local else "",
            "model": self.names.get("model", ""),
            "embeddings": about.embeddings,
            "width": about.width,
            "images": self.reads_images,
            "looks": not isinstance(self.model, OnnxModel),
            "shows": self.catalog.has_images,
            "probabilities": self.catalog.engine.calibration is not None,
            "rerank": self.names.get("rerank", "second model") if self.reranker is not None else None,
            "rerank_top": self.settings.rerank_top,
            "answer": self.names.get("answer", "answerer") if self.answerer is not None else None,
            "examples": self.examples(),
            "fields": [{"name": each.name, "values": list(each.values)} for each in self.catalog.fields],
            "upload_bytes": limits.upload_bytes,
            "top_k": LARGEST_PAGE,
            "roots": [readable(root) for root in about.roots] if is_local else [],
        }

    async def _follow(self) -> None:
        """Open the index again whenever it was written; searches in progress keep the state that they began with."""
        loop, least = asyncio.get_running_loop(), max(self.settings.reload_s, self._source.pause_s)
        pause = least
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), pause)
                await asyncio.sleep(self.settings.reload_s)  # an engine that restarts needs a moment
            self._lost.clear()
            began = time.monotonic()
            try:
                await loop.run_in_executor(self._decoders, self.reload)
            except (OpenVSEError, OSError) as error:
                if str(error) != self.trouble:
                    _logger.warning("the index is served as it was: %s", error)
                self.trouble = str(error)
                self.metrics.reloads.labels("failed").inc()
            # A large index that is written all the time takes at most a tenth of one thread.
            pause = max(least, 10 * (time.monotonic() - began))

    def reload(self) -> bool:
        """Open the index again if it was written since; return whether it was.

        Raises:
            OpenVSEError: it can no longer be served; the state before stays.
        """
        state = self._source.state(None if self.trouble else self.catalog)
        if state == self._seen and not self.trouble:
            return False
        before, self.catalog = self.catalog, self._source.open(self._remembering)
        self._main.submit(before.close)  # what is being searched there is answered first
        self._captions = captions_beside(self.catalog.captioned)
        self._seen, self.trouble = state, ""
        self.metrics.reloads.labels("done").inc()
        return True


def _reads_images(model: Embedder | Answerer) -> bool:
    """Return whether a model reads images, and not only stored features; the question-only model reads none."""
    if isinstance(model, OnnxModel):
        return model.reads_images
    if model.image is None:
        return True
    try:
        model.image.encoder.backbone.read(Image.new("RGB", (32, 32)))
    except ModelError:
        return False
    return True


def small_image(path: Path, *, large: bool = False) -> bytes:
    """Return an image, or a frame from the middle of a clip, as a small WebP.

    Args:
        path: the file.
        large: whether it is for the panel of the page, and not for the grid.

    Raises:
        MissingError: the file cannot be read as an image.
    """
    try:
        image = read_poster(path)
    except OpenVSEError as error:
        raise MissingError(
            f"{path.name} cannot be shown: it is gone, damaged or of an unknown kind"
        ) from error
    side = LARGE_PX if large else THUMBNAIL_PX
    image.thumbnail((side, side))
    encoded = io.BytesIO()
    image.save(encoded, "WEBP", quality=82 if large else 78)
    return encoded.getvalue()


def open_file(path: Path) -> IO[bytes]:
    """Open a file whose real place was checked (``Catalog.file``), if it is still the file of that place.

    Raises:
        MissingError: it is gone or cannot be read, or a link was put there or above it after the check.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    gone = f"{path.name} is no longer there: index the folder again"
    try:
        file = os.fdopen(os.open(path, flags), "rb")
    except OSError as error:
        raise MissingError(gone) from error
    place = Path(f"/dev/fd/{file.fileno()}")
    if place.is_symlink() and place.readlink() != path:  # the system knows where the open file is (Linux)
        file.close()
        raise MissingError(gone)
    return file
