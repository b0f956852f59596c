"""Questions that arrive together are answered by one call, and the fault of one is its own."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from openvse.errors import DataError
from openvse.indexing import Index
from openvse.model.two_tower import TwoTower
from openvse.search import Page, Query, SearchEngine
from openvse.serving.batching import CLIENT, Gatherer, RememberingModel
from tests.serving.conftest import Place


def gathered(
    answer: Callable[[Sequence[int]], Sequence[int]],
    ask: Callable[[Gatherer[int, int]], Coroutine[Any, Any, Any]],
    together: int = 64,
) -> tuple[Any, list[int]]:
    sizes: list[int] = []
    with ThreadPoolExecutor(1) as thread:
        gatherer = Gatherer(answer, thread, together=together, on_call=sizes.append)
        return asyncio.run(ask(gatherer)), sizes


def double(asked: Sequence[int]) -> list[int]:
    return [2 * each for each in asked]


async def ask_many(gatherer: Gatherer[int, int], count: int = 10) -> list[int | BaseException]:
    asked = (gatherer.ask(number) for number in range(count))
    return await asyncio.gather(*asked, return_exceptions=True)


def test_questions_of_one_moment_are_one_call() -> None:
    answers, sizes = gathered(double, ask_many)
    assert answers == [2 * number for number in range(10)] and sizes == [10]


def test_a_call_has_at_most_so_many() -> None:
    answers, sizes = gathered(double, ask_many, together=4)
    assert answers == [2 * number for number in range(10)] and sizes == [4, 4, 2]


def test_clients_take_turns() -> None:
    calls: list[list[int]] = []

    async def ask(gatherer: Gatherer[int, int]) -> None:
        greedy = asyncio.create_task(ask_many(gatherer, 40))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        CLIENT.set("other")
        await asyncio.gather(gatherer.ask(100), gatherer.ask(101), greedy)

    gathered(lambda asked: calls.append([*asked]) or double(asked), ask)
    assert [len(each) for each in calls] == [16, 18, 8] and {100, 101} <= {*calls[1][:4]}


@pytest.mark.medium
def test_clients_that_ask_again_at_once_stay_together() -> None:
    """Otherwise the first of them would be answered alone, and then the others, for good."""

    def slow(asked: Sequence[int]) -> list[int]:
        time.sleep(0.2)
        return double(asked)

    async def client(gatherer: Gatherer[int, int], number: int) -> None:
        for _ in range(6):
            await gatherer.ask(number)
            await asyncio.sleep(0.001 * number)  # reads its answer

    async def ask(gatherer: Gatherer[int, int]) -> None:
        await asyncio.gather(*(client(gatherer, number) for number in range(4)))

    _, sizes = gathered(slow, ask)
    assert sum(sizes) == 24 and len(sizes) <= 8


def test_the_fault_of_one_question_is_its_own() -> None:
    def picky(asked: Sequence[int]) -> list[int]:
        if 3 in asked:
            raise DataError("three is not allowed")
        return double(asked)

    answers, _ = gathered(picky, ask_many)
    assert isinstance(answers[3], DataError)
    assert [each for number, each in enumerate(answers) if number != 3] == [0, 2, 4, 8, 10, 12, 14, 16, 18]


def test_late_ones_are_given_up() -> None:
    free = threading.Event()

    def slow(asked: Sequence[int]) -> list[int]:
        free.wait(30)
        return double(asked)

    async def ask(gatherer: Gatherer[int, int]) -> list[int | BaseException]:
        first = asyncio.create_task(asyncio.wait_for(gatherer.ask(1), 0.05))
        await asyncio.sleep(0.01)
        others = asyncio.create_task(ask_many(gatherer, 5))
        with pytest.raises(TimeoutError):
            await first
        free.set()
        return await others

    answers, sizes = gathered(slow, ask)
    assert answers == [0, 2, 4, 6, 8] and sizes == [1, 5]


@pytest.mark.medium
def test_queries_of_all_kinds_cost_one_call_of_the_text_encoder(
    place: Place, model: TwoTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    encode = model.encode_text
    monkeypatch.setattr(model, "encode_text", lambda texts: calls.append([*texts]) or encode(texts))
    engine = SearchEngine(RememberingModel(model, 100), Index.open(place.index))
    asked = [Query("a red dog runs"), Query("grass", avoid=("birds",)), Query("the cat")]
    pages = [Page(top_k=3), Page(top_k=4), Page(top_k=2, skip=1)]
    found = engine.answer(asked, pages)
    assert [len(each.hits) for each in found] == [3, 4, 2]
    assert calls == [["a red dog runs", "grass", "birds", "the cat"]]
    one_by_one = [engine.answer(query, page)[0] for query, page in zip(asked, pages, strict=True)]
    assert [each.hits for each in found] == [each.hits for each in one_by_one]
    assert len(calls) == 1  # the next page of a sentence costs none


def test_as_many_sentences_are_remembered_as_were_asked_for(model: TwoTower) -> None:
    remembering = RememberingModel(model, 2)
    both = remembering.encode_text(["grass", "a red dog runs", "grass", "the cat"])
    assert len(both) == 4 and both.vectors[0].equal(both.vectors[2])
    assert len(remembering._known) == 2
