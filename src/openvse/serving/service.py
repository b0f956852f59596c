"""The work of a server, without HTTP: searches, re-ranking, explanations, answers, and updates of the index."""

from __future__ import annotations

import asyncio
import hashlib
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
from typing import IO, Any, TypeAlias, TypeVar

from PIL import Image
from starlette.datastructures import UploadFile

from openvse.errors import EngineError, MissingItemError, ModelError, OpenVSEError, message_of
from openvse.halves import training_module
from openvse.media.images import read_image
from openvse.media.videos import ClipSource, read_poster
from openvse.output.thumbnails import THUMBNAIL_PX
from openvse.search import Answer, Page, Query, captions_beside
from openvse.search.cache import ByteCache
from openvse.serving.batching import BusyError, Gatherer, RememberingModel, ServedModel
from openvse.serving.layers import RequestMetrics
from openvse.serving.schemas import LARGEST_PAGE
from openvse.serving.served import Served, Source
from openvse.serving.settings import Settings
from openvse.serving.watching import FolderWatch
from openvse.stores import EngineAddress

_logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
ServedAnswer: TypeAlias = tuple[Served, Answer]
"""An answer, and what was served when it was given."""

LARGE_PX = 1280
"""The longer side of the image in the panel of the page."""

QUERY_PX = 800
"""The longer side of an image that is kept for searches; models read images of less."""

_EXAMPLES = 6
_SLOW_WAITING = 32
_WORDS = range(2, 10)
_TEXTS = (".txt", ".caption", ".csv", ".tsv", ".json", ".jsonl", ".token")


class Service:
    """An index or an engine, and its models, for the requests of an event loop.

    One thread searches, and batches the questions that arrive meanwhile. Another one does slow work (re-ranking,
    explanations, answers), so that it does not delay searches. Two decode images.

    Args:
        model: the model that made its embeddings; an exported one has no map of what it looked at.
        watch: whether to update the index whenever its folders change (``FolderWatch``).
    """

    def __init__(
        self,
        source: Path | Source,
        model: ServedModel,
        settings: Settings,
        *,
        reranker: Any = None,
        answerer: Any = None,
        names: Mapping[str, str] | None = None,
        watch: bool = False,
    ) -> None:
        self.settings, self.limits = settings, settings.limits
        self.model, self.reranker, self.answerer = model, reranker, answerer
        self.names = dict(names or {})
        self.reads_images = bool(model.reads_images)
        for other, option in ((reranker, "--rerank"), (answerer, "--answer")):
            if other is not None and not other.reads_images:
                raise ModelError(
                    f"the model of {option} reads features and no images: give one that has an image network"
                )
        self._source = Source(source) if isinstance(source, Path) else source
        self._remembering = RememberingModel(model, self.limits.sentences)
        self._seen = self._source.state(None)
        self.served = self._source.open(self._remembering)
        self._watch = self._watching(self._source.place) if watch else None
        self.metrics = RequestMetrics()
        self.thumbnails: ByteCache[bytes] = ByteCache(self.limits.thumbnail_bytes)
        self._query_images: ByteCache[bytes] = ByteCache(self.limits.kept_bytes)
        self.is_ready, self.trouble = False, ""
        self._failed = asyncio.Event()
        self._captions: Mapping[str, Sequence[str]] = {}
        self._captions_of: object = None
        self._loads_for_images = self.reads_images
        self._uploads = asyncio.Semaphore(self.limits.uploads)
        self._main = ThreadPoolExecutor(1, "openvse-search")
        self._slow = ThreadPoolExecutor(1, "openvse-slow")
        self._decoders = ThreadPoolExecutor(2, "openvse-decode")
        self._num_slow = 0
        self._gatherer: Gatherer[tuple[Query, Page], ServedAnswer] = Gatherer(
            self._answers,
            self._main,
            together=self.limits.together,
            waiting=self.limits.waiting,
            on_call=self.metrics.together.observe,
        )
        self._following: asyncio.Task[None] | None = None
        self.metrics.watch("items", "Items of the index.", lambda: len(self.served))
        self.metrics.watch("waiting", "Questions that wait for the model.", lambda: self._gatherer.waiting)
        self.metrics.watch("thumbnail_bytes", "Memory of small images.", lambda: len(self.thumbnails))

    async def start(self) -> None:
        """Read the captions, warm up the model with one query, and begin to follow the index."""
        await asyncio.get_running_loop().run_in_executor(self._slow, self._read_captions)
        if len(self.served):
            await self._gatherer.ask((Query(text="a photo"), Page(top_k=1)), timeout_s=600)
        self._following = asyncio.create_task(self._follow())
        if self._watch is not None:
            self._watch.start()
        self.is_ready = True

    async def stop(self) -> None:
        """Answer the questions that wait, and end the threads."""
        self.is_ready = False
        if self._following is not None:
            self._following.cancel()
        if self._watch is not None:
            await asyncio.to_thread(self._watch.stop, self.limits.stop_s)
        await self._gatherer.drained()
        self._main.submit(self.served.close)
        self._main.shutdown(wait=False)
        for pool in (self._slow, self._decoders):
            pool.shutdown(wait=False, cancel_futures=True)

    def _watching(self, place: Path | EngineAddress) -> FolderWatch:
        if not isinstance(place, Path):
            raise ModelError(
                "the folders of an engine are not watched: serve the index that fills it with --watch"
            )
        if not self.model.makes_index:
            raise ModelError("folders are watched for images, and this model reads none: leave out --watch")
        return FolderWatch(
            place, lambda: [Path(root.path) for root in self.served.engine.note.roots], self.model
        )

    def _answers(self, asked: Sequence[tuple[Query, Page]]) -> list[ServedAnswer]:
        """Answer some queries with one call of the engine, on the thread that searches."""
        served = self.served
        queries, pages = zip(*asked, strict=True)
        return [(served, answer) for answer in served.engine.answer(queries, pages)]

    async def search(
        self, asked: Sequence[tuple[Query, Page]], *, rerank: bool = False
    ) -> list[dict[str, Any]]:
        """Return the replies to some queries; with ``rerank``, the second model ranks them again."""
        if self._loads_for_images and any(query.image is not None for query, _ in asked):
            # Towers load the model of images now; the thread that searches would keep all others waiting.
            await self.run_slow(partial(self.model.encode_image, [Image.new("RGB", (32, 32))]))
            self._loads_for_images = False
        if rerank and self.reranker is None:
            raise ModelError(
                "this server has no second model: start it with --rerank MODEL, or leave rerank out"
            )
        reranker = self._hit_reranker if rerank else None
        wanted = [(query, page if reranker is None else reranker.first(page)) for query, page in asked]
        answers = await asyncio.gather(*(self._gatherer.ask(each, self.limits.answer_s) for each in wanted))
        replies = []
        for (query, page), (served, first) in zip(asked, answers, strict=True):
            answer = first
            if reranker is not None:
                answer = (await self.run_slow(partial(reranker.rerank, [query], [first], [page])))[0]
            replies.append(served.describe_answer(answer, self._captions))
        return replies

    def engine_failed(self, error: EngineError) -> None:
        """Note that the engine failed, so that it is opened again soon."""
        if not self.trouble:
            _logger.warning("%s", error)
            self.trouble = str(error)
        self._failed.set()

    @cached_property
    def _hit_reranker(self) -> Any:
        assert self.reranker is not None
        made: Callable[..., Any] = training_module("openvse.retrieval").HitReranker
        return made(self.reranker, top=self.settings.rerank_top, keep_bytes=self.limits.reranked_bytes)

    async def run_slow(self, work: Callable[[], ResultT]) -> ResultT:
        """Run slow work on a thread beside the searches; raise BusyError if too much waits already, or TimeoutError."""
        if self._num_slow >= _SLOW_WAITING:
            raise BusyError("too many questions wait for an answer: try again in a moment")
        self._num_slow += 1
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._slow, work), self.limits.answer_s)
        finally:
            self._num_slow -= 1

    async def run_io(self, work: Callable[[], ResultT]) -> ResultT:
        """Read or write a file beside the searches; raise TimeoutError if it is not done in time."""
        loop = asyncio.get_running_loop()
        return await asyncio.wait_for(loop.run_in_executor(self._decoders, work), self.limits.answer_s)

    @asynccontextmanager
    async def uploaded(self, upload: UploadFile) -> AsyncIterator[Image.Image]:
        """Decode an image that a client sent, and hold one of the places for uploads while it is in use.

        Decoding that takes too long goes on, and so its place is free only when it has ended.
        """
        async with asyncio.timeout(self.limits.answer_s):
            await self._uploads.acquire()
        decoding: asyncio.Future[Image.Image] | None = None
        try:
            work = partial(read_image, await upload.read(), max_pixels=self.limits.upload_pixels)
            work = partial(work, shorter_side=QUERY_PX)
            decoding = asyncio.get_running_loop().run_in_executor(self._decoders, work)
            yield await asyncio.wait_for(asyncio.shield(decoding), self.limits.answer_s)
        finally:
            if decoding is None or decoding.done():
                self._uploads.release()
            else:
                decoding.add_done_callback(self._release)

    def _release(self, decoded: asyncio.Future[Image.Image]) -> None:
        """Give back the place of an upload that nobody waits for any more."""
        self._uploads.release()
        if not decoded.cancelled():
            decoded.exception()  # otherwise asyncio logs that nobody looked at it

    async def keep(self, upload: UploadFile) -> str:
        """Store an image for the searches of a client, and return its name, a digest of its content."""
        async with self.uploaded(upload) as image:
            content = await self.run_io(partial(encoded_query, image))
        name = hashlib.sha256(content).hexdigest()[:32]
        self._query_images.keep(name, content)
        return name

    def query_image(self, name: str) -> bytes:
        """Return an image that a client sent; raise MissingItemError if it is unknown or was dropped."""
        content = self._query_images.find(name)
        if content is None:
            raise MissingItemError("the server no longer has this image: send it again")
        return content

    async def thumbnail(self, key: int, *, large: bool = False) -> bytes:
        """Return an item as a small WebP."""
        served = self.served

        def made() -> bytes:
            path, name = served.file(key), f"{key} {served.version(key)} {large}"
            return self.thumbnails.get(name, partial(small_image, path, large=large))

        return await self.run_io(made)

    @property
    def looks(self) -> bool:
        """Whether the model can show what it looked at."""
        return bool(self.model.has_whole)

    async def score_map(self, image: ClipSource, sentence: str) -> dict[str, Any]:
        """Return how much each part of an image, and each word of a sentence, adds to their score."""
        if not self.looks:
            raise ModelError(
                "an exported model cannot show what it looked at: serve the model that it was exported from"
            )

        def work() -> dict[str, Any]:
            look: Callable[..., Any] = training_module("openvse.tasks.looking").look
            described: dict[str, Any] = look(self.model.whole, image, sentence).describe()
            return described

        return await self.run_slow(work)

    async def answer(self, image: ClipSource, question: str) -> dict[str, Any]:
        """Return the answers to a question about an image, and where the model looked."""
        model = self.answerer
        if model is None:
            raise ModelError("this server answers no questions: start it with --answer MODEL")
        explain = training_module("openvse.vqa.explain").explain
        describe_answer: Callable[[Any], dict[str, Any]]
        describe_answer = training_module("openvse.tasks.looking").describe_answer
        return describe_answer((await self.run_slow(partial(explain, model, image, [question])))[0])

    def captions(self, key: int) -> list[str]:
        """Return the captions of an item; there may be none."""
        return [*map(self.served.readable, self._captions.get(self.served.id_of(key), ()))]

    def examples(self) -> list[str]:
        """Return sentences to try: those of the settings, or captions or titles of the images."""
        if self.settings.examples:
            return [*self.settings.examples]
        drawn = random.Random(0)
        names = sorted(self._captions)
        some = drawn.sample(names, min(len(names), 40))
        firsts = [text.strip(" .") for name in some for text in self._captions[name][:1]]
        firsts += drawn.sample(self.served.titles, min(len(self.served.titles), 40))
        sentences = [text for text in dict.fromkeys(firsts) if len(text.split()) in _WORDS]
        return [*map(self.served.readable, sentences[:_EXAMPLES])]

    def _read_captions(self) -> None:
        """Read the captions of the first folder again, if its text files have changed."""
        state = texts_in(self.served.engine.root)
        if state != self._captions_of:
            self._captions, self._captions_of = captions_beside(self.served.engine.root), state

    def describe(self) -> dict[str, Any]:
        """Return the description of the server for clients, without the paths of its files."""
        served, note = self.served, self.served.engine.note
        return {
            "title": self.settings.title,
            "items": len(served),
            "complete": served.is_complete,
            "created": note.created,
            "model": self.names.get("model", ""),
            "embeddings": note.embeddings,
            "width": note.dim,
            "images": self.reads_images,
            "looks": self.looks,
            "shows": served.has_images,
            "probabilities": served.engine.calibration is not None,
            "rerank": self.names.get("rerank", "second model") if self.reranker is not None else None,
            "rerank_top": self.settings.rerank_top,
            "answer": self.names.get("answer", "answerer") if self.answerer is not None else None,
            "examples": self.examples(),
            "fields": [{"name": name, "values": values} for name, values in served.fields.items()],
            "upload_bytes": self.limits.upload_bytes,
            "top_k": LARGEST_PAGE,
        }

    async def _follow(self) -> None:
        """Open the index again after every change; searches in progress keep their state."""
        loop, least = asyncio.get_running_loop(), max(self.settings.reload_s, self._source.pause_s)
        pause = least
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._failed.wait(), pause)
                await asyncio.sleep(self.settings.reload_s)  # an engine that restarts needs a moment
            self._failed.clear()
            began = time.monotonic()
            try:
                await loop.run_in_executor(self._decoders, self.reload)
            except Exception as error:  # whatever it is, the server goes on, and looks again
                if message_of(error) != self.trouble:
                    _logger.warning("the index is served as it was: %s", message_of(error))
                self.trouble = message_of(error)
                self.metrics.reloads.labels("failed").inc()
            # A large index that is written all the time takes at most a tenth of one thread.
            pause = max(least, 10 * (time.monotonic() - began))

    def reload(self) -> bool:
        """Open the index if it was written since; return whether it was, or raise OpenVSEError and keep the old one."""
        state = self._source.state(None if self.trouble else self.served)
        if state == self._seen and not self.trouble:
            return False
        before, self.served = self.served, self._source.open(self._remembering)
        self._main.submit(before.close)  # what is being searched there is answered first
        self._read_captions()
        self._seen, self.trouble = state, ""
        self.metrics.reloads.labels("done").inc()
        return True


def texts_in(root: Path) -> object:
    """Return what changes when a text file at the top of a folder does: its captions need not be read before that."""
    with suppress(OSError), os.scandir(root) as entries:
        texts = [each for each in entries if Path(each.name).suffix.lower() in _TEXTS]
        return root, sorted((each.name, each.stat().st_mtime_ns, each.stat().st_size) for each in texts)
    return root


def small_image(path: Path, *, large: bool = False) -> bytes:
    """Return an image, or a frame from the middle of a clip, as a small WebP, or a large one for the panel."""
    side = LARGE_PX if large else THUMBNAIL_PX
    try:
        image = read_poster(path, shorter_side=side)
    except OpenVSEError as error:
        raise MissingItemError(
            f"{path.name} cannot be shown: it is gone, damaged or of an unknown kind"
        ) from error
    image.thumbnail((side, side))
    encoded = io.BytesIO()
    image.save(encoded, "WEBP", quality=82 if large else 78)
    return encoded.getvalue()


def encoded_query(image: Image.Image) -> bytes:
    """Return an image as a small JPEG, or as a PNG if it is small anyway, so that every browser can show it."""
    encoded = io.BytesIO()
    if max(image.size) <= QUERY_PX // 2:
        image.save(encoded, "PNG")
    else:
        image.thumbnail((QUERY_PX, QUERY_PX))
        image.save(encoded, "JPEG", quality=95, subsampling=0)
    return encoded.getvalue()


def open_file(path: Path) -> IO[bytes]:
    """Open a file whose real place was checked (``Served.file``), if no link was put there or above it since."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    gone = f"{path.name} is no longer there: index the folder again"
    try:
        file = os.fdopen(os.open(path, flags), "rb")
    except OSError as error:
        raise MissingItemError(gone) from error
    place = Path(f"/dev/fd/{file.fileno()}")
    if place.is_symlink() and place.readlink() != path:  # the system knows where the open file is (Linux)
        file.close()
        raise MissingItemError(gone)
    return file
