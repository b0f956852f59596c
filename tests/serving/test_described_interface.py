"""Requests that are made from the description of the interface: none makes the server fail, and its bounds hold."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from openvse.model.two_tower import TwoTower
from openvse.serving.service import Service
from openvse.serving.settings import Settings
from openvse_papers.vqa.explain import ServedAnswerer
from tests.failures import Failures
from tests.naming import names
from tests.serving.conftest import Place, Running, png
from tests.serving.described import attacked

EXAMPLES = 10

Bound = tuple[str, str, str, str, object, object]
"""Method, address, place (path, query or body), field, a value just inside, and one just outside of a bound."""


def values_of(schema: dict[str, Any], name: str) -> Iterator[tuple[object, object]]:
    """Return a value just inside and one just outside of every bound of a field."""
    for kind in schema.get("anyOf", [schema]):
        inside = kind.get("items", kind)
        text = "year = 2000" if name == "where" else "a"
        is_whole = kind.get("type") == "integer"
        for key, step in (("minimum", -1), ("maximum", 1)):
            if key in kind:
                bound = kind[key] if not is_whole else int(kind[key])
                yield bound, bound + step * (1 if is_whole else 1e-3)
        if "exclusiveMinimum" in kind:
            yield kind["exclusiveMinimum"] + 1e-3, kind["exclusiveMinimum"]
        if kind.get("type") == "number":
            yield kind.get("maximum", kind.get("minimum", 1)), "nan"
        for key, step in (("minItems", -1), ("maxItems", 1)):
            if key in kind:
                item: object = {"text": "a"} if "$ref" in inside else text
                yield [item] * kind[key], [item] * (kind[key] + step)
        for key, step in (("minLength", -1), ("maxLength", 1)):
            if key in inside:
                pair = text.ljust(inside[key], "0"), text.ljust(inside[key] + step, "0")[: inside[key] + step]
                yield ([pair[0]], [pair[1]]) if inside is not kind else pair
        if "pattern" in kind:
            yield "0" * 32, "0" * 31


def bounds_of(document: dict[str, Any]) -> Iterator[Bound]:
    """Return all bounds of the interface."""
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", ()):
                for pair in values_of(parameter["schema"], parameter["name"]):
                    yield method, path, parameter["in"], parameter["name"], *pair
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            named = body.get("schema", {}).get("$ref", "").rpartition("/")[2]
            for name, schema in schemas.get(named, {}).get("properties", {}).items():
                for pair in values_of(schema, name):
                    yield method, path, "body", name, *pair
    for name, schema in schemas["SearchFields"]["properties"].items():
        for pair in values_of(schema, name):
            yield "post", "/api/search", "each", name, *pair


def test_every_bound_of_the_description_is_that_of_the_server(client: TestClient) -> None:
    tried: set[tuple[str, str]] = set()
    for method, path, where, name, *pair in bounds_of(client.get("/openapi.json").json()):
        for value, is_allowed in zip(pair, (True, False), strict=True):
            query: dict[str, object] = {"text": "a"} if path in ("/api/search", "/api/search/image") else {}
            sent: dict[str, Any] = {"files": {"image": png()}} if path.endswith("/image") else {}
            address = path.replace("{key}", "1").replace("{name}", "0" * 32)
            if method == "post" and not sent:
                sent = {"json": {"queries": [{"text": "a"}]} if path == "/api/search" else {"question": "what"}}
                query = {}
            if where == "path":
                address = path.replace("{" + name + "}", str(value))
            elif where == "query":
                query[name] = value
            elif where == "body":
                sent["json"][name] = value
            else:
                sent["json"]["queries"][0][name] = value
            reply = client.request(method, address, params=query, **sent)
            told = reply.json().get("error", "") if "json" in reply.headers["content-type"] else ""
            case = (method, address[:60], name, str(value)[:30], reply.status_code, told)
            is_refused = reply.status_code == 422 and bool(
                re.match(rf"(queries\.0\.)?{name}(\.\d+)? is (?!for )", told)
            )
            assert is_refused is not is_allowed, case
        tried.add((path, name))
    assert len(tried) > 40 and {("/api/search", "text"), ("/api/items", "id"), ("/session", "token")} <= tried


BODIES: list[tuple[bytes, int, list[object]]] = [
    (b'{"queries": [{"text": "a"}],\n "top_k": }', 422, [2, 11]),
    (b'{"queries": [{"text": "a"}}', 422, [1, 27]),
    ("{'text': 'é'}".encode(), 422, [1, 2]),
    (b"", 422, ["Content-Type: application/json"]),
    (b"[1]", 422, ["JSON"]),
    (b"null", 422, ["JSON"]),
    (b"{}", 422, ["queries"]),
    (b'{"queries": [{"text": "a"}], "tpo_k": 5}', 422, ["tpo_k", "'top_k'"]),
    (b'{"queries": [{"text": "a", "top_k": 5}]}', 422, ["queries.0.top_k"]),
    (b'{"queries": [{"text": "a"}], "min_score": NaN}', 422, ["min_score", "nan"]),
    (b'{"queries": [{"text": "a"}], "expected": Infinity}', 422, ["expected", "inf"]),
    (b'{"queries": [{"text": "a"}], "top_k": "x"}', 422, ["top_k", "'x'"]),
    (b'{"queries": [{"text": 5}]}', 422, ["queries.0.text", 5]),
    (b'{"queries": [{"text": "\\ud800"}]}', 422, ["queries.0.text"]),
    (b"[" * 100_000, 400, []),
    (b'{"queries": [{"text": "\xff"}]}', 400, ["UTF-8", 24]),
    (b'\xef\xbb\xbf{"queries": [{"text": "a"}]}', 200, []),
]


def test_what_is_wrong_with_a_body_is_told(client: TestClient) -> None:
    failures = Failures()
    for content, status, named in BODIES:
        with failures.of(content[:50]):
            reply = client.post("/api/search", content=content, headers={"content-type": "application/json"})
            told = reply.json().get("error", "")
            assert reply.status_code == status and names(told, *named) and "\n" not in told, reply.text
    assert not failures, failures
    plain = client.post("/api/search", content=b'{"queries": [{"text": "a"}]}', headers={"content-type": "text/plain"})
    assert plain.status_code == 422 and "Content-Type: application/json" in plain.json()["error"]


ADDRESSES: list[tuple[str, str, int, list[object]]] = [
    ("get", "/docs", 404, ["/openapi.json"]),
    ("get", "/api/nothing", 404, ["/api/nothing"]),
    ("delete", "/api/info", 405, ["DELETE"]),
    ("post", "/api/search/image", 422, ["image"]),
    ("get", "/api/items", 422, ["id"]),
    ("get", "/api/info?x=1", 422, ["x"]),
    ("get", "/api/items/1?size=2", 422, ["size"]),
    ("get", "/api/items/1/looked?q=a&topk=2", 422, ["topk"]),
    ("get", "/api/search?q=a&tpo_k=2", 422, ["'top_k'"]),
    ("get", "/api/search?text=a&text=b", 422, ["text", 2]),
    ("get", "/api/search?q=a&skip=1&skip=2", 422, ["skip", 2]),
    ("get", "/api/items/x", 422, ["key", "'x'"]),
    ("get", f"/api/images/{'0' * 32}", 404, []),
]


def test_what_is_wrong_with_an_address_is_told(client: TestClient) -> None:
    failures = Failures()
    for method, path, status, named in ADDRESSES:
        with failures.of(method, path):
            reply = client.request(method, path)
            assert reply.status_code == status and names(reply.json()["error"], *named), reply.text
    assert not failures, failures


@pytest.mark.slow
def test_no_request_makes_the_server_fail(
    place: Place, model: TwoTower, second: TwoTower, answerer: ServedAnswerer, running: Callable[[Service], Running]
) -> None:
    served = Service(place.index, model, Settings(), reranker=second, answerer=answerer)
    statuses = attacked(running(served).url, EXAMPLES)
    assert len(statuses) > 8 * EXAMPLES and {200, 422} <= set(statuses)
