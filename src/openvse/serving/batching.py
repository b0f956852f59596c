"""Fewer model calls, shared fairly: queries that arrive together share one, and recent sentences are cached."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeAlias, TypeVar

from openvse.errors import OpenVSEError

_LOOK_S = 0.001
_OF_CLIENT = 16  # short questions of a client in one call, as others wait for it

CLIENT: ContextVar[str] = ContextVar("CLIENT", default="")
"""The address of the client whose request is answered."""

AskT = TypeVar("AskT")
AnswerT = TypeVar("AnswerT")
_Asked: TypeAlias = tuple[AskT, asyncio.Future[AnswerT]]


class BusyError(OpenVSEError):
    """More questions wait than the server accepts."""


class FairPlaces:
    """The places of a queue. A client holds at most as many as are free, so that others find some."""

    def __init__(self, count: int) -> None:
        self._count, self._held = count, Counter[str]()

    @contextmanager
    def held(self, count: int = 1) -> Iterator[None]:
        """Hold places for the present client. Raise BusyError if it would have more than its share."""
        wanted = Counter({CLIENT.get(): count})
        if self._held[CLIENT.get()] + count > self._count - self._held.total():
            raise BusyError("too many questions wait for an answer: try again in a moment")
        self._held += wanted
        try:
            yield
        finally:
            self._held -= wanted


async def going_on(place: asyncio.Lock | asyncio.Semaphore, working: asyncio.Future[AnswerT]) -> AnswerT:
    """Return the result of work that holds a place until it ends, and goes on if nobody waits for it any more."""
    working.add_done_callback(lambda _: place.release())
    working.add_done_callback(lambda done: done.cancelled() or done.exception())  # asyncio logs what nobody looked at
    return await asyncio.shield(working)


class Gatherer(Generic[AskT, AnswerT]):
    """Batches questions: a call on one thread answers all that arrived during the call before.

    A question that finds the thread idle is answered at once. Right after a call that answered several, the next call
    waits for as many questions, at most a tenth of the time that the call took. This keeps clients that ask again at
    once in one batch. Otherwise each would be in a batch of its own from then on. Clients take turns, and a call
    answers at most 16 questions of one, by their weights (``weigh``: 1 is a short sentence).

    If a call fails, its questions are repeated one by one, so that only those with a fault fail.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[AskT]], Sequence[AnswerT]],
        thread: Executor,
        *,
        together: int,
        weigh: Callable[[AskT], int] = lambda question: 1,
        on_call: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._answer, self._thread, self._weigh, self._on_call = answer, thread, weigh, on_call
        self._together = together
        self._asked: dict[str, deque[_Asked[AskT, AnswerT]]] = {}  # by client, the one whose turn it is first
        self._work: asyncio.Task[None] | None = None
        # The call before: how many questions, how many seconds, and when it ended.
        self._before, self._took, self._ended = 0, 0.0, -math.inf

    @property
    def waiting(self) -> int:
        """The number of questions that wait."""
        return sum(map(len, self._asked.values()))

    async def ask(self, question: AskT) -> AnswerT:
        """Return the answer to a question."""
        answer: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        one, client = (question, answer), CLIENT.get()
        self._asked.setdefault(client, deque()).append(one)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run())
        try:
            return await answer
        except asyncio.CancelledError:  # what nobody waits for takes no memory
            self._keep(client, deque(each for each in self._asked.pop(client, ()) if each is not one))
            raise

    def _keep(self, client: str, asked: deque[_Asked[AskT, AnswerT]]) -> None:
        """Let a client wait behind the others with what it asked."""
        if asked:
            self._asked[client] = asked

    def _batch(self) -> list[_Asked[AskT, AnswerT]]:
        """Take the questions of the next call, of each client in turn."""
        batch: list[_Asked[AskT, AnswerT]] = []
        taken = Counter[str]()
        while (
            len(batch) < self._together
            and (client := next((each for each in self._asked if taken[each] < _OF_CLIENT), None)) is not None
        ):
            asked = self._asked.pop(client)
            one = asked.popleft()
            self._keep(client, asked)
            if not one[1].done():  # otherwise its client has gone, or was told that it takes too long
                batch.append(one)
                taken[client] += self._weigh(one[0])
        return batch

    async def drained(self) -> None:
        """Wait until every question is answered."""
        if self._work is not None:
            await self._work

    async def _run(self) -> None:
        while self._asked:
            await self._moment()
            if not (batch := self._batch()):
                continue
            self._on_call(len(batch))
            began = time.monotonic()
            if not await self._call(batch) and len(batch) > 1:
                for one in batch:
                    await self._call([one])
            self._before, self._ended = len(batch), time.monotonic()
            self._took = self._ended - began

    async def _moment(self) -> None:
        """Right after a call, wait for as many questions as it answered."""
        until = self._ended + self._took / 10
        while self.waiting < min(self._before, self._together) and time.monotonic() < until:
            await asyncio.sleep(_LOOK_S)

    async def _call(self, batch: Sequence[_Asked[AskT, AnswerT]]) -> bool:
        """Answer some questions with one call. Return False if it failed."""
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, self._answer, [each for each, _ in batch])
        except Exception as error:
            if len(batch) == 1 and not batch[0][1].done():
                batch[0][1].set_exception(error)
            return False
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
        return True


ServedModel: TypeAlias = Any
"""A model of PyTorch, or an exported one."""


class RememberingModel:
    """A model, exported or not, that caches the embeddings of the last so many sentences."""

    def __init__(self, model: ServedModel, sentences: int) -> None:
        self._model: Any = model
        self._most = sentences
        self._known: OrderedDict[str, Any] = OrderedDict()
        self.fingerprint: str = model.fingerprint  # once, as a served model does not change

    def of(self, model: ServedModel) -> RememberingModel:
        """Return the same for a model, which may be another one."""
        return self if model is self._model else RememberingModel(model, self._most)

    def encode_text(self, captions: Sequence[str]) -> Any:
        """Embed sentences, all new ones in one call."""
        if not captions:
            return self._model.encode_text(captions)
        if new := [each for each in dict.fromkeys(captions) if each not in self._known]:
            embedded = self._model.encode_text(new)
            for row, caption in enumerate(new):
                self._known[caption] = embedded[row : row + 1]
        for caption in captions:
            self._known.move_to_end(caption)
        some = [self._known[caption] for caption in captions]
        rows = type(some[0]).concatenate(some)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return rows

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the model."""
        return getattr(self._model, name)
