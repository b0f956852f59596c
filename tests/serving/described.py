"""Requests that are made from the description of an interface; as a program, their statuses are printed."""

import json
import sys

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings


def attacked(url: str, examples: int) -> list[int]:
    """Send requests that are made from the description of the interface, and return the statuses of the replies."""
    statuses: list[int] = []
    for result in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=examples,
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
    return statuses


if __name__ == "__main__":
    print(json.dumps(attacked(sys.argv[1], int(sys.argv[2]))))
