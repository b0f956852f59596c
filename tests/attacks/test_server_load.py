"""Odd requests beside clients that search, while the served folder changes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from openvse.model.two_tower import TwoTower
from openvse.serving.service import Service
from openvse.serving.settings import Settings
from openvse.vqa.answerer import Answerer
from tests.conftest import draw_photo
from tests.serving.conftest import Place, Running, png

CLIENTS, EXAMPLES = 8, 2


@pytest.mark.slow
def test_odd_requests_beside_load_and_changes_fail_nobody(
    own_place: Place,
    model: TwoTower,
    second: TwoTower,
    answerer: Answerer,
    running: Callable[[Service], Running],
) -> None:
    service = Service(
        own_place.index, model, Settings(reload_s=0.1), reranker=second, answerer=answerer, watch=True
    )
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
