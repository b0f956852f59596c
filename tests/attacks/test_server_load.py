"""Odd requests beside clients that search, while the served folder changes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from openvse.model.two_tower import TwoTower
from openvse.search.query import Page, Query
from openvse.serving.batching import CLIENT, BusyError
from openvse.serving.service import Service
from openvse.serving.settings import Limits, Settings
from openvse_papers.vqa.answerer import Answerer
from tests.attacks.conftest import send
from tests.conftest import draw_photo
from tests.serving.conftest import Place, Running, client_of, png

CLIENTS, EXAMPLES = 8, 2


@pytest.mark.medium
def test_no_client_fills_a_queue(place: Place, model: TwoTower, monkeypatch) -> None:
    """One that asks without end gets its share, and slow work of others is next, not behind all of it."""
    service = Service(place.index, model, Settings(limits=Limits(waiting=32, together=1)))
    free, order, answers = threading.Event(), list[str](), service._gatherer._answer

    def work(client: str) -> None:
        order.append(client)
        free.wait(20)

    async def search(client: str) -> object:
        CLIENT.set(client)
        return await service.search([(Query(client), Page(top_k=1))])

    async def ask_slow(client: str) -> object:
        CLIENT.set(client)
        return await service.run_slow(lambda: work(client))

    async def both(ask: Callable[[str], Coroutine[Any, Any, object]]) -> list[object]:
        greedy = [asyncio.create_task(ask("greedy")) for _ in range(40)]
        await asyncio.sleep(0.05)
        other = asyncio.create_task(ask("other"))
        await asyncio.sleep(0.05)
        free.set()
        return [*await asyncio.gather(*greedy, return_exceptions=True), await other]

    monkeypatch.setattr(service._gatherer, "_answer", lambda asked: (work("search"), answers(asked))[1])
    for ask in (search, ask_slow):
        free.clear()
        told = asyncio.run(both(ask))
        assert [isinstance(each, BusyError) for each in told] == [False] * 16 + [True] * 24 + [False]
    assert order[:17] == ["search"] * 17 and order[17:].index("other") <= 2


@pytest.mark.medium
def test_clients_are_told_apart_by_their_addresses(place: Place, model: TwoTower, monkeypatch) -> None:
    service, asking = Service(place.index, model, Settings()), list[str]()

    async def noted(*_: object, **__: object) -> list[dict[str, object]]:
        asking.append(CLIENT.get())
        return [{}]

    with client_of(service) as client:
        monkeypatch.setattr(service, "search", noted)
        for address in ("192.0.2.1", "192.0.2.2", "2001:db8::1"):
            assert send(client, "GET", "/api/search?q=grass", address=address).status == 200
    assert asking == ["192.0.2.1", "192.0.2.2", "2001:db8::1"]


@pytest.mark.slow
def test_odd_requests_beside_load_and_changes_fail_nobody(
    own_place: Place, model: TwoTower, second: TwoTower, answerer: Answerer, running: Callable[[Service], Running]
) -> None:
    service = Service(own_place.index, model, Settings(reload_s=0.1), reranker=second, answerer=answerer, watch=True)
    url, stop, statuses = running(service).url, threading.Event(), Counter[int]()

    def search(number: int) -> None:
        with httpx.Client(base_url=url, timeout=30) as client:
            while not stop.wait(0.02):
                asked = {"q": "grass", "rerank": number % 4 == 0, "where": "year >= 2000"}
                statuses[client.get("/api/search", params=asked).status_code] += 1
                if number % 4 == 1:
                    statuses[client.post("/api/search/image", files={"image": png()}).status_code] += 1

    def change() -> None:
        for number in range(1000):
            path = own_place.photos / f"new{number % 5}.jpg"
            path.unlink() if path.exists() else draw_photo(number).save(path)
            if stop.wait(0.3):
                return

    with ThreadPoolExecutor(CLIENTS + 1) as threads:
        beside = [threads.submit(search, number) for number in range(CLIENTS)] + [threads.submit(change)]
        try:
            # in a process of its own: hypothesis and NumPy may not parse Python at the same time (CPython 3.11)
            command = [sys.executable, "-m", "tests.serving.described", url, str(EXAMPLES)]
            sent = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        finally:
            stop.set()
        for each in beside:
            each.result()
    assert len(sent) > 20 and sum(statuses.values()) > CLIENTS and {*statuses} == {200}
