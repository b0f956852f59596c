"""Tools for assistants, asked by the client of the protocol's own library; each server is a process of its own."""

import asyncio
import base64
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from PIL import Image

from openvse.runtime import OnnxModel
from openvse.search.updating import index
from photographs import bag, exif_of, jpeg, xmp_packet
from tests.runtime.colour_export import write_export

TOKEN = "a token of some length"
PEOPLE = xmp_packet('xmp:Rating="5"', bag("Iptc4xmpExt:PersonInImage", "Grandma"))
Asks = Callable[[Client], Awaitable[None]]

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of three photographs, with a file beside their folder that nobody may see."""
    place = tmp_path_factory.mktemp("assisted")
    (place / "photos").mkdir()
    for name in ("red", "green", "blue"):
        exif = exif_of("2024:06:01 12:30:00", "+02:00", "Canon", "Canon X", (52.5, 13.4))
        (place / "photos" / f"{name}.jpg").write_bytes(jpeg(name, exif, PEOPLE if name == "red" else b""))
    (place / "secret.jpg").write_bytes(jpeg("red"))
    index(OnnxModel(write_export(place / "model")), place / "photos", place / "index")
    return place / "index"


def command(album: Path, *options: str) -> list[str]:
    return ["-m", "openvse", "serve", str(album), *options]


@dataclass(frozen=True)
class Listening:
    url: str
    port: int
    process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def listening(album: Path) -> Iterator[Listening]:
    """A server with a token, on a port."""
    words = [sys.executable, *command(album, "--port", "0")]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "OPENVSE_TOKEN": TOKEN})
    with process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            port = next(int(match[1]) for line in lines if (match := re.search(r":(\d+)/", line)))
            yield Listening(f"http://127.0.0.1:{port}", port, process)
            assert process.poll() is None
        finally:
            process.terminate()


def over_http(listening: Listening, asks: Asks) -> None:
    async def run() -> None:
        http = httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}, timeout=60)
        async with http, Client(streamable_http_client(f"{listening.url}/mcp", http_client=http)) as client:
            await asks(client)

    asyncio.run(asyncio.wait_for(run(), 60))


def over_stdio(album: Path, asks: Asks) -> None:
    async def run() -> None:
        served = StdioServerParameters(command=sys.executable, args=command(album, "--mcp"), env={**os.environ})
        async with Client(served) as client:
            await asks(client)

    asyncio.run(asyncio.wait_for(run(), 60))


async def said(client: Client, tool: str, **arguments: Any) -> Any:
    """Return what a tool answers, or the message of its error."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    if result.is_error:
        return content.text
    hits = result.structured_content.get("hits")
    if hits is None:
        assert json.loads(content.text) == result.structured_content
    else:  # a line for each, as they are sent once
        assert content.text == "\n".join(f"key {hit['key']}: {hit['id']} ({hit['title']})" for hit in hits)
    return result.structured_content


async def asks_everything(client: Client) -> None:
    """Every tool, right and wrong questions; the same over both transports."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {*tools} == {"search", "similar", "describe", "show"}
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    assert {"text", "like", "where", "top_k"} <= {*tools["search"].input_schema["properties"]}
    assert tools["describe"].input_schema["required"] == ["key"]
    found = await said(client, "search", q="red", top_k=1)
    (hit,) = found["hits"]
    assert (hit["id"], found["searched"]) == ("red.jpg", 3)
    where = ["people = Grandma", "rating >= 4", "near = 52.5,13.4,1km"]
    assert [each["id"] for each in (await said(client, "search", q="blue", where=where))["hits"]] == ["red.jpg"]
    for name, given, written in SPELLED:
        as_meant = await said(client, "search", q="blue", **{name: given})
        assert await said(client, "search", q="blue", **{name: written}) == as_meant, written
    others = await said(client, "similar", key=hit["key"])
    assert {each["id"] for each in others["hits"]} == {"green.jpg", "blue.jpg"}
    about = await said(client, "describe", key=hit["key"])
    assert (about["id"], about["metadata"]["people"], about["captions"]) == ("red.jpg", ["Grandma"], [])
    (image,) = (await client.call_tool("show", {"key": hit["key"]})).content
    with Image.open(io.BytesIO(base64.b64decode(image.data))) as shown:
        assert (image.mime_type, shown.size) == ("image/webp", (64, 48))
    for tool, arguments, word in WRONG:
        assert word in await said(client, tool, **arguments), (tool, arguments)
    assert (await said(client, "search", q="red", top_k=1))["hits"] == found["hits"]


SPELLED: list[tuple[str, object, object]] = [
    ("avoid", ["red", "green"], '["red", "green"]'),
    ("avoid", ["red"], "red"),
    ("avoid", ["[red] things"], "[red] things"),
    ("where", ["rating >= 4", "size > 1"], ' ["rating >= 4", "size > 1"] '),
    ("top_k", 2, "2"),
    ("rerank", False, "false"),
    ("like", 1, "1"),
    ("only", None, None),
]
"""Arguments, each as the schema says and as clients write it."""

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("search", {}, "query"),
    ("search", {"text": "red", "top_k": 100_000}, "top_k"),
    ("search", {"text": "red", "topk": 3}, "top_k"),
    ("search", {"text": "red " * 1000}, "text"),
    ("search", {"text": "red", "where": ["rating >"]}, "rating"),
    ("search", {"text": "red", "where": ["path ~ " + "*a" * 20]}, "8"),
    ("search", {"text": {"a": 1}}, "text is {'a': 1}"),
    ("search", {"text": "red", "top_k": [1, 2]}, "top_k"),
    ("search", {"text": "red", "avoid": "['a dog', 'a cat']"}, "avoid"),
    ("search", {"text": "red", "avoid": '["a", ["b"]]'}, "avoid.1"),
    ("search", {"text": "red", "where": {"field": "size"}}, "where"),
    ("similar", {"key": 1, "text": "red"}, "text"),
    ("describe", {"key": 99_999}, "99"),
    ("describe", {"key": "../../etc/passwd"}, "passwd"),
    ("describe", {}, "key"),
    ("show", {"key": -1}, "key"),
    ("show", {"key": "1/../../secret.jpg"}, "secret"),
    ("delete", {"key": 1}, "delete"),
]


@pytest.mark.slow
def test_every_tool_over_http(listening: Listening) -> None:
    over_http(listening, asks_everything)


@pytest.mark.slow
def test_every_tool_over_stdio(album: Path) -> None:
    over_stdio(album, asks_everything)


def test_errors_and_replies_are_those_of_the_rest_interface(listening: Listening) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    rest = [
        httpx.get(f"{listening.url}/api/search", params=params, headers=headers).json()
        for params in ({"text": "red"}, {"q": "red", "top_k": 0}, {"q": "red", "where": "size > x"})
    ]

    async def asks(client: Client) -> None:
        found = await said(client, "search", q="red")
        assert {**found, "hits": ()} == {**rest[0], "hits": ()}
        for hit, known in zip(found["hits"], rest[0]["hits"], strict=True):
            assert hit == {name: value for name, value in known.items() if name in hit}
            assert {*known} - {*hit} <= {"was", "probability", "fit", "matched", "text", "thumbnail"}
        assert await said(client, "search", q="red", top_k=0) == rest[1]["error"].replace("'0'", "0")
        assert await said(client, "search", q="red", where=["size > x"]) == rest[2]["error"]

    over_http(listening, asks)


def test_what_is_said_of_an_item_is_that_of_the_rest_interface(listening: Listening) -> None:
    address = f"{listening.url}/api/items/1"
    known = httpx.get(address, headers={"authorization": f"Bearer {TOKEN}"}).json()

    async def asks(client: Client) -> None:
        assert await said(client, "describe", key=1) == known

    over_http(listening, asks)


def test_no_path_of_the_machine_is_told(listening: Listening, album: Path) -> None:
    async def asks(client: Client) -> None:
        told = [await said(client, "search", q="red"), await said(client, "describe", key=1)]
        told += [await said(client, tool, **arguments) for tool, arguments, _ in WRONG]
        assert str(album.parent) not in json.dumps(told)

    over_http(listening, asks)


def post(listening: Listening, content: bytes, path: str = "/mcp", **headers: str) -> httpx.Response:
    wanted = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    wanted |= {"authorization": f"Bearer {TOKEN}"} | headers
    return httpx.post(f"{listening.url}{path}", content=content, headers=wanted, timeout=30)


def test_nobody_asks_without_the_token_or_from_another_site(listening: Listening) -> None:
    hello = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
    assert [post(listening, hello, path).status_code for path in ("/mcp", "/mcp/", "//mcp")] == [200] * 3
    assert post(listening, hello, "/mcp/", authorization="").status_code == 401
    assert post(listening, hello, authorization="").status_code == 401
    assert post(listening, hello, authorization="Bearer wrong").status_code == 401
    assert post(listening, hello, origin="https://evil.example").status_code == 403
    for method in ("GET", "DELETE", "PUT"):
        reply = httpx.request(method, f"{listening.url}/mcp", headers={"authorization": f"Bearer {TOKEN}"})
        assert reply.status_code == 405 and reply.json()["error"]


@pytest.mark.slow
def test_nonsense_slow_and_leaving_clients_keep_nobody(listening: Listening) -> None:
    failures = [
        post(listening, content).status_code
        for content in (b"", b"{", b"[]", b"\xff" * 100, b"[" * 50_000, b'{"jsonrpc": "1.0"}', b"x" * 300_000)
    ]
    assert set(failures) <= {400, 413} and failures[-1] == 413
    silent = []
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 900\r\n"
    call = {"name": "search", "arguments": {"text": "red"}}
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    for number in range(60):
        silent.append(socket.create_connection(("127.0.0.1", listening.port)))
        silent[-1].sendall(head.encode() + b"\r\n" + b'{"jsonrpc"')
        if number % 2:
            silent.pop().close()
        with socket.create_connection(("127.0.0.1", listening.port)) as leaving:
            whole = head.replace("900", str(len(asked))) + "Content-Type: application/json\r\nAccept: */*\r\n\r\n"
            leaving.sendall(whole.encode() + asked)
    over_http(listening, asks_everything)
    for each in silent:
        each.close()


def peak_mb(process_id: int) -> float:
    """Return the largest memory that a process has had."""
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1000


@pytest.mark.slow
def test_nonsense_over_stdio_ends_nothing_and_the_end_of_input_ends_the_server(album: Path) -> None:
    words = [sys.executable, *command(album, "--mcp")]
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    lines = [
        "no JSON",
        "[" * 5000,
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json.dumps({"jsonrpc": "2.0", "id": 2, "method": "nothing/such"}),
        json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/list"}),
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n".join(lines) + "\n")
        process.stdin.flush()
        replies: dict[Any, Any] = {}
        while 3 not in replies:
            reply = json.loads(process.stdout.readline())
            replies[reply.get("id")] = reply
        before = peak_mb(process.pid)
        for _ in range(100):
            process.stdin.write("x" * 1_000_000)
        process.stdin.write("\n" + json.dumps({"jsonrpc": "2.0", "id": 4, "method": "ping"}) + "\n")
        process.stdin.flush()
        refused, answered = (json.loads(process.stdout.readline()) for _ in range(2))
        assert (refused["id"], refused["error"]["code"], answered["id"]) == (None, -32600, 4)
        assert peak_mb(process.pid) < before + 20
        process.stdin.close()
        assert (process.stdout.read(), process.wait(30)) == ("", 0)
    assert "error" in replies[2] and len(replies[3]["result"]["tools"]) == 4


@pytest.mark.slow
def test_a_signal_ends_a_server_that_waits_for_input(album: Path) -> None:
    words = [sys.executable, *command(album, "--mcp")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        process.stdout.readline()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0 and time.monotonic() - began < 25
