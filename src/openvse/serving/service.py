"""The work of a server, without HTTP: searches, re-ranking, explanations, answers, and updates of the index."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import IO, Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from anyio import CancelScope
from PIL import Image
from starlette.datastructures import UploadFile

from openvse.errors import BadImageError, EngineError, MissingItemError, ModelError, OpenVSEError, message_of
from openvse.media.listing import PLAIN
from openvse.media.names import escaped
from openvse.media.videos import ClipSource
from openvse.output.thumbnails import THUMBNAIL_PX
from openvse.pipeline import WorkProgress
from openvse.runtime.model import WholeModel
from openvse.search import Answer, Page, Query
from openvse.search.hits import ByteCache
from openvse.search.provided import EXPLAINER, RERANKER, AnswersQuestions, RanksAgain, Teaches
from openvse.search.sheets import captions_beside
from openvse.search.updating import index
from openvse.serving.batching import CLIENT, FairPlaces, Gatherer, RememberingModel, ServedModel, going_on
from openvse.serving.decoding import LARGE_PX, Decoders, SlowImageError
from openvse.serving.layers import RequestMetrics
from openvse.serving.schemas import LARGEST_PAGE
from openvse.serving.served import Served, Source
from openvse.serving.settings import Settings
from openvse.stores import EngineAddress

_OPTIONS: dict[str, Any] = {
    "step": 300,  # changes count together until nothing more comes for so many milliseconds
    "debounce": 3000,
    "rust_timeout": 1000,  # between two looks at which folders are there
    "yield_on_timeout": True,
    "raise_interrupt": False,
    "ignore_permission_denied": True,
}
_RETRY_S, _SCAN_S = 5.0, 60.0
_READ_S = 10.0  # of text in images, before the folders are looked at again
_NAMED = 3


class _EndedError(Exception):
    """The server ends while images are embedded. Finished embeddings are kept."""


class _EnoughError(Exception):
    """New images come before the text of unread ones. Finished readings are kept."""


class FolderWatch:
    """Updates an index on a thread of its own, as ``openvse index`` does, whenever its folders change.

    The index is locked only meanwhile, and an update waits while another process writes it. The items of a missing
    folder stay, and the folder is watched again once it is back. The first update is for earlier changes.
    """

    def __init__(self, index: Path, folders: Callable[[], Sequence[Path]], model: Callable[[], Any]) -> None:
        self._index, self._folders, self._model = index.resolve(), folders, model
        self._ending, self._reading_since, self._told = Event(), math.inf, dict[str, str]()
        self._away: list[Path] = []  # folders inside, which may come back as other ones
        self._thread = Thread(target=self._run, name="openvse-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the thread. Finished embeddings are kept."""
        self._ending.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        from watchfiles import watch

        due = True
        while not self._ending.is_set():
            there = self._there()
            try:
                for changes in watch(*there, watch_filter=self._counts, stop_event=self._ending, **_OPTIONS):
                    due = (due or bool(changes)) and not self._update()
                    if self._there() != there:
                        due = True
                        break
            except Exception as error:  # the system may watch no more folders; the server goes on
                self._warn(
                    f"the folders cannot be watched, and are looked at every {_SCAN_S:g} seconds: {message_of(error)}",
                    about="watching",
                )
                due = not self._update()
                self._ending.wait(_SCAN_S)

    def _there(self) -> dict[Path, tuple[int, int]]:
        """Return the existing folders, each with a value that changes when another takes its place."""
        folders = {}
        for folder in (*self._folders(), *self._away):
            with suppress(OSError):
                status = folder.stat()
                folders[folder] = (status.st_dev, status.st_ino)
        return folders

    def _counts(self, _: object, path: str) -> bool:
        """Return whether a changed file is none of the index, which may be inside a folder of images."""
        return not Path(path).is_relative_to(self._index)

    def _update(self) -> bool:
        """Do what ``openvse index`` does on the same folders. Return whether all is done, after a wait if it failed."""
        try:
            self._reading_since = math.inf
            report = index(self._model(), self._folders(), self._index, progress=self._go_on).items
        except _EnoughError:
            return False
        except _EndedError:
            return True
        except Exception as error:  # whatever it is, the server goes on
            self._warn(f"the index is not updated yet: {message_of(error)}")
            return self._ending.wait(_RETRY_S)
        self._away = [path for path, _ in report.unreached if path.is_dir()]
        lines = [f"{escaped(path)}: {reason}" for path, reason in (*report.unreached, *report.failed)]
        lines += report.metadata_problems
        more = f"; and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
        self._warn("; ".join(lines[:_NAMED]) + more)
        return True

    def _go_on(self, step: str, _: WorkProgress) -> None:
        if self._ending.is_set():
            raise _EndedError
        if step == "text":
            self._reading_since = min(self._reading_since, time.monotonic())
            if time.monotonic() - self._reading_since > _READ_S:
                raise _EnoughError

    def _warn(self, line: str, *, about: str = "update") -> None:
        """Warn of a fault once, until it changes. "" is the end of it."""
        if line and line != self._told.get(about):
            _logger.warning("%s", line)
        self._told[about] = line


_logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
ServedAnswer: TypeAlias = tuple[Served, Answer]
"""An answer, and the state that was served with it."""

_EXAMPLES = 6
_SHORT, _IMAGE = 60, 8  # characters of a short sentence, and how many of them take as long as an image
_NEXT = 3  # items to teach that a reply names
_SLOW_WAITING = 32
_FOR_FILES, _FOR_UPLOADS = 2, 2  # processes that decode
_WORDS = range(2, 10)
_TEXTS = (".txt", ".caption", ".csv", ".tsv", ".json", ".jsonl", ".token")


def _weight(asked: tuple[Query, Page]) -> int:
    """Return how many short sentences take as long as a query."""
    query = asked[0]
    return 1 + sum(map(len, (query.text, *query.avoid))) // _SHORT + _IMAGE * (query.image is not None)


class Service:
    """An index or an engine, and its models, for the requests of an event loop.

    One thread searches, and batches the questions that arrive meanwhile. A second thread does slow work (reranking,
    explanations, answers), so that it does not delay searches. Processes decode images. Each kind of work has its own
    queue: images keep neither files, facts nor updates of the index waiting, and uploads keep no thumbnails waiting.
    """

    def __init__(
        self,
        source: Path | Source,
        model: ServedModel,
        settings: Settings,
        *,
        reranker: WholeModel | None = None,
        answerer: AnswersQuestions | None = None,
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
        if self.teacher is not None and not (settings.token or settings.is_local):
            raise OpenVSEError(f"--teach lets {settings.host} write: give --token, or leave out --host")
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
        self._teaching, self._reloading = ThreadPoolExecutor(1, "openvse-teaching"), Lock()
        self._slow = ThreadPoolExecutor(1, "openvse-slow")
        self.decoders = Decoders(_FOR_FILES, self.limits.decode_s)
        self.upload_decoders = Decoders(_FOR_UPLOADS, self.limits.decode_s)
        self._decoding_uploads = asyncio.Semaphore(_FOR_UPLOADS)
        self._places, self._slow_places = FairPlaces(self.limits.waiting), FairPlaces(_SLOW_WAITING)
        self._slow_turn = asyncio.Lock()
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        self._gatherer: Gatherer[tuple[Query, Page], ServedAnswer] = Gatherer(
            self._answers,
            self._main,
            together=self.limits.together,
            weigh=_weight,
            on_call=self.metrics.together.observe,
        )
        self._following: asyncio.Task[None] | None = None
        self.metrics.watch("items", "Items of the index.", lambda: len(self.served))
        self.metrics.watch("waiting", "Questions that wait for the model.", lambda: self._gatherer.waiting)
        self.metrics.watch("thumbnail_bytes", "Memory of small images.", lambda: len(self.thumbnails))

    async def start(self) -> None:
        """Read the captions, warm up the model with one query, and begin to follow the index."""
        await asyncio.to_thread(self._read_captions)
        if len(self.served):
            await self._gatherer.ask((Query(text="a photo"), Page(top_k=1)))
        await asyncio.gather(self.decoders.begun(), self.upload_decoders.begun())
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
        if self.teacher is not None:
            await asyncio.to_thread(self.teacher.close)
        self._teaching.shutdown(wait=False, cancel_futures=True)
        self._main.submit(self.served.engine.close)
        self._main.shutdown(wait=False)
        self._slow.shutdown(wait=False, cancel_futures=True)
        self.decoders.close()
        self.upload_decoders.close()

    def _watching(self, place: Path | EngineAddress) -> FolderWatch:
        if not isinstance(place, Path):
            raise ModelError("the folders of an engine are not watched: serve the index that fills it with --watch")
        if not self.model.makes_index:
            raise ModelError("folders are watched for images, and this model reads none: leave out --watch")
        folders = lambda: [Path(root.path) for root in self.served.engine.note.roots]  # noqa: E731
        return FolderWatch(place, folders, lambda: self.model if self.teacher is None else self.teacher.saved)

    def _answers(self, asked: Sequence[tuple[Query, Page]]) -> list[ServedAnswer]:
        """Answer some queries with one call of the engine, on the thread that searches."""
        served = self.served
        queries, pages = zip(*asked, strict=True)
        return [(served, answer) for answer in served.engine.answer(queries, pages)]

    async def search(self, asked: Sequence[tuple[Query, Page]], *, rerank: bool = False) -> list[dict[str, Any]]:
        """Return the replies to some queries. With ``rerank``, the second model reranks them."""
        if self._loads_for_images and any(query.image is not None for query, _ in asked):
            # Towers load the model of images now; the thread that searches would keep all others waiting.
            await self.run_slow(partial(self.model.encode_image, [Image.new("RGB", (32, 32))]))
            self._loads_for_images = False
        if rerank and self.reranker is None:
            raise ModelError("this server has no second model: start it with --rerank MODEL, or leave rerank out")
        reranker = self._hit_reranker if rerank else None
        wanted = [(query, page if reranker is None else reranker.first(page)) for query, page in asked]
        replies = []
        with self._places.held(len(asked)):
            async with asyncio.timeout(self.limits.timeout):
                answers = await asyncio.gather(*map(self._gatherer.ask, wanted))
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
    def _hit_reranker(self) -> RanksAgain:
        assert self.reranker is not None
        return RERANKER.get()(self.reranker, top=self.settings.rerank_top, keep_bytes=self.limits.reranked_bytes)

    async def run_slow(self, work: Callable[[], ResultT]) -> ResultT:
        """Run slow work on a thread beside the searches. Raise BusyError if too much waits already, or TimeoutError.

        Work that takes too long goes on. Until it has ended, further work waits here, where it can be given up.
        """
        first_of_client = self._turns.setdefault(CLIENT.get(), asyncio.Lock())
        with self._slow_places.held():
            async with asyncio.timeout(self.limits.timeout):
                async with first_of_client:  # others of it wait here, so that clients take turns
                    await self._slow_turn.acquire()
                return await going_on(self._slow_turn, asyncio.get_running_loop().run_in_executor(self._slow, work))

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Hold one of the places for uploads."""
        async with asyncio.timeout(self.limits.timeout):
            await self._uploads.acquire()
        try:
            yield
        finally:
            self._uploads.release()

    async def _decoded(self, kind: str, upload: UploadFile) -> Any:
        """Decode an uploaded image. Raise TimeoutError if its turn does not come in time."""
        task = {"kind": kind, "max_pixels": self.limits.upload_pixels}
        async with asyncio.timeout(self.limits.timeout), self._decoding_uploads:
            return await self.upload_decoders.decoded(task, await upload.read())

    @asynccontextmanager
    async def uploaded(self, upload: UploadFile) -> AsyncIterator[Image.Image]:
        """Decode an image that a client sent, and hold one of the places for uploads while it is in use."""
        async with self._place():
            yield await self._decoded("pixels", upload)

    async def keep(self, upload: UploadFile) -> str:
        """Store an image for the searches of a client, and return its name, a digest of its content."""
        async with self._place():
            content: bytes = await self._decoded("query", upload)
        name = hashlib.sha256(content).hexdigest()[:32]
        self._query_images.keep(name, content)
        return name

    def query_image(self, name: str) -> bytes:
        """Return an image that a client sent. Raise MissingItemError if it is unknown or was dropped."""
        if (content := self._query_images.find(name)) is None:
            raise MissingItemError("the server no longer has this image: send it again")
        return content

    async def thumbnail(self, key: int, *, large: bool = False, page: int = 1, most: int | None = None) -> bytes:
        """Return an item, or a frame from the middle of a clip, as a small WebP, or a large one for the panel.

        If it has more than ``most`` bytes, its quality is lowered, and then its size.
        """
        served = self.served

        def found() -> tuple[Path, str, bytes | None]:
            name = f"{key} {served.version(key)} {large} {page} {most}"
            return served.file(key), name, self.thumbnails.find(name)

        async with asyncio.timeout(self.limits.timeout):
            path, name, content = await asyncio.to_thread(found)
            if content is None:
                side, quality = (LARGE_PX, 82) if large else (THUMBNAIL_PX, 78)
                task = {"kind": "small", "side": side, "quality": quality, "page": page, "most": most}
                try:
                    content = await self.decoders.decoded(task, os.fsencode(path))
                except SlowImageError:
                    content = b""  # it is not tried again
                except BadImageError as error:
                    raise _unseen(path) from error
                self.thumbnails.keep(name, content)
        if not content:
            raise _unseen(path)
        return content

    @property
    def looks(self) -> bool:
        """Whether the model can show the regions that it used."""
        return bool(self.model.has_whole)

    async def score_map(self, image: ClipSource, sentence: str) -> dict[str, Any]:
        """Return the share of each part of an image, and of each word of a sentence, in their score."""
        if not self.looks:
            raise ModelError(
                "an exported model cannot show what it looked at: serve the model that it was exported from"
            )
        model = self.model if self.teacher is None else self.teacher.model
        return await self.run_slow(lambda: EXPLAINER.get()(model.whole, image, sentence))

    async def answer(self, image: ClipSource, question: str) -> dict[str, Any]:
        """Return the answers to a question about an image, and the regions that the model used."""
        if (model := self.answerer) is None:
            raise ModelError("this server answers no questions: start it with --answer MODEL")
        return await self.run_slow(partial(model.answer_json, image, question))

    @property
    def teacher(self) -> Teaches | None:
        """The teacher of the index, or None if the server only reads."""
        return self._source.teacher

    async def teach(self, change: Callable[[Teaches], ResultT]) -> ResultT:
        """Let the teacher change something, one after the other, whoever leaves, and search by what it has learned."""
        if (teacher := self.teacher) is None:
            raise ModelError("this server does not learn: start it with --teach")

        def work() -> ResultT:
            number, result = teacher.number, change(teacher)
            if number != teacher.number:
                self.reload()
            return result

        with self._slow_places.held(), CancelScope(shield=True):
            result = await asyncio.get_running_loop().run_in_executor(self._teaching, work)
        return result  # noqa: RET504 - for mypy, as a scope may swallow errors

    def taught(self, teacher: Teaches, passed_keys: Collection[int] = ()) -> dict[str, Any]:
        """Return how much was taught, and the items to teach next, each with the words that fit it best."""
        served, following, passed = self.served, [], set[str]()
        for key in passed_keys:
            with suppress(MissingItemError):
                passed.add(served.id_of(key))
        for item in teacher.next(_NEXT, passed):
            with suppress(MissingItemError):  # the index has changed meanwhile
                about = served.describe(served.key(item))
                chosen = {name: about[name] for name in ("key", "id", "name", "thumbnail")}
                following.append({**chosen, "words": teacher.words(item)})
        return {**served.readable(teacher.progress()), "next": following}

    @property
    def judges(self) -> bool:
        """Whether clients may judge hits: they know the token, or are on this machine, and the index is to learn."""
        may_write = bool(self.settings.token) or self.settings.is_local
        return may_write and self.served.engine.judgements is not None

    async def judged(self, text: str, key: int = 0, *said: bool | None) -> dict[str, Any]:
        """Keep what is said of an item and a sentence, if anything, and return what is known of the sentence."""
        served = self.served
        if said and (judgements := served.engine.judgements) is not None:
            with CancelScope(shield=True):  # it is kept, even if the client has left
                await asyncio.to_thread(judgements.add, text, served.id_of(key), *said)
        async with asyncio.timeout(self.limits.timeout):
            with self._places.held():  # judged sentences are embedded by the thread that searches
                return await asyncio.get_running_loop().run_in_executor(self._main, served.judged, text)

    def facts(self, key: int) -> dict[str, Any]:
        """Return name, time, size, metadata and captions of an item."""
        served = self.served
        captions = self._captions.get(served.id_of(key), ())
        return {**served.describe(key), "captions": [*map(served.readable, captions)]}

    def examples(self) -> list[str]:
        """Return sentences to try: sentences of the settings, or captions or titles of the images."""
        if self.settings.example:
            return [*self.settings.example]
        drawn = random.Random(0)
        names = sorted(self._captions)
        some = drawn.sample(names, min(len(names), 40))
        firsts = [text.strip(" .") for name in some for text in self._captions[name][:1]]
        firsts += drawn.sample(self.served.titles, min(len(self.served.titles), 40))
        sentences = [text for text in dict.fromkeys(firsts) if len(text.split()) in _WORDS]
        return [*map(self.served.readable, sentences[:_EXAMPLES])]

    def _read_captions(self) -> None:
        """Read the captions of the first folder again, if its text files have changed. A failure leaves none."""
        if self.teacher is not None:
            self._captions = dict(self.teacher.captions)
            return
        root = self.served.engine.root
        if (state := texts_in(root)) == self._captions_of:
            return
        self._captions_of = state
        try:
            self._captions = captions_beside(root)
        except Exception as error:  # whatever a text of the folder does
            self._captions = {}
            _logger.warning("the captions beside the images cannot be read: %s", message_of(error))

    def describe(self) -> dict[str, Any]:
        """Return the description of the server for clients, without the paths of its files."""
        served, note = self.served, self.served.engine.note
        return {
            "title": self.settings.title,
            "items": len(served),
            "complete": served.engine.catalogue.is_complete,
            "created": note.created,
            "model": self.names.get("model", ""),
            "embeddings": note.embeddings,
            "width": note.dim,
            "images": self.reads_images,
            "looks": self.looks,
            "judges": self.judges,
            "shows": served.has_images,
            "probabilities": served.engine.calibration is not None,
            "rerank": self.names.get("rerank", "second model") if self.reranker is not None else None,
            "rerank_top": self.settings.rerank_top,
            "answer": self.names.get("answer", "answerer") if self.answerer is not None else None,
            "examples": self.examples(),
            "fields": [{"name": name, "values": values} for name, values in served.fields.items()],
            "upload_bytes": self.limits.upload_bytes,
            "top_k": LARGEST_PAGE,
            "teaches": self.teacher is not None,
        }

    async def _follow(self) -> None:
        """Open the index again after every change. Searches in progress keep their state."""
        pause = least = max(self.settings.reload_s, self._source.pause_s)
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._failed.wait(), pause)
                await asyncio.sleep(self.settings.reload_s)  # an engine that restarts needs a moment
            self._failed.clear()
            began = time.monotonic()
            try:
                await asyncio.to_thread(self.reload)
            except Exception as error:  # whatever it is, the server goes on, and looks again
                if message_of(error) != self.trouble:
                    _logger.warning("the index is served as it was: %s", message_of(error))
                self.trouble = message_of(error)
                self.metrics.reloads.labels("failed").inc()
            # A large index that is written all the time takes at most a tenth of one thread.
            pause = max(least, 10 * (time.monotonic() - began))

    def reload(self) -> bool:
        """Open the index if it was written since, and return whether it was. A failure keeps the old one."""
        with self._reloading:
            return self._reload()

    def _reload(self) -> bool:
        state = self._source.state(None if self.trouble else self.served)
        if state == self._seen and not self.trouble:
            return False
        before, self.served = self.served, self._source.open(self._remembering)
        self._main.submit(before.engine.close)  # what is being searched there is answered first
        self._read_captions()
        self._seen, self.trouble = state, ""
        self.metrics.reloads.labels("done").inc()
        return True


def texts_in(root: Path) -> object:
    """Return a value that changes with a text file at the top of a folder, after which captions are read again."""
    with suppress(OSError), os.scandir(root) as entries:
        texts = [each for each in entries if Path(each.name).suffix.lower() in _TEXTS]
        return root, sorted((each.name, each.stat().st_mtime_ns, each.stat().st_size) for each in texts)
    return root


def _unseen(path: Path) -> MissingItemError:
    return MissingItemError(f"{path.name} cannot be shown: it is gone, damaged or of an unknown kind")


def open_file(path: Path) -> IO[bytes]:
    """Open a file whose real place was checked (``Served.file``), if no link was put there or above it since."""
    gone = f"{path.name} is no longer there: index the folder again"
    try:
        file = os.fdopen(os.open(path, PLAIN), "rb")
    except OSError as error:
        raise MissingItemError(gone) from error
    place = Path(f"/dev/fd/{file.fileno()}")
    if place.is_symlink() and place.readlink() != path:  # the system knows where the open file is (Linux)
        file.close()
        raise MissingItemError(gone)
    return file
