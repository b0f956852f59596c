"""Requests that are made from the description of the interface: none makes the server fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from openvse.model import TwoTower
from openvse.serving import Settings
from openvse.serving.service import Service
from openvse.vqa.answerer import Answerer
from tests.serving.conftest import Place, Running

EXAMPLES = 10


@pytest.mark.slow
def test_no_request_makes_the_server_fail(
    place: Place,
    model: TwoTower,
    second: TwoTower,
    answerer: Answerer,
    running: Callable[[Service], Running],
) -> None:
    served = Service(place.index, model, Settings(), reranker=second, answerer=answerer)
    schema = schemathesis.openapi.from_url(f"{running(served).url}/openapi.json")
    statuses: list[int] = []
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def attack(case: schemathesis.Case) -> None:
            reply = case.call()
            statuses.append(reply.status_code)
            assert reply.status_code < 500, (case.as_curl_command(), reply.text)

        attack()
    assert len(statuses) > 8 * EXAMPLES and {200, 422} <= set(statuses)
