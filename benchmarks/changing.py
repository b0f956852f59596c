"""``openvse serve`` with 8 clients while pictures are added, replaced and removed, and the model is once another one.

    python benchmarks/changing.py [--minutes 15] [--pictures 200] [--clients 8]

The clients search by sentence, picture and item, with conditions and by words, and fetch thumbnails. Another process
changes a picture each second and updates the index. At half time it replaces the index by that of another model, and
the server is started anew with this model. Answers to sentences are compared with those of the indexes that were
current while the sentence was asked. The models are small and untrained: what is measured is not how long a large model
takes. Server, clients and the process that changes pictures share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import re
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from PIL import Image

from _measure import environment, table
from openvse.retrieval.build import build_model
from openvse.search import Index, Page, Query, SearchEngine
from openvse.search.updating import IndexSettings, index
from openvse.tasks.load import load_two_tower
from openvse.tasks.recipes import parse_recipe
from serving import Client, serving

SENTENCES = ("a red dog", "two green birds on a table", "a blue house", "people in the snow", "picture 17")
TOP = 10
SEEN_S = 5.0  # the server may notice a change so much later
KINDS = ("sentence", "words", "condition", "item", "picture", "thumbnail")


@dataclass
class Seen:
    """What the clients saw of one kind of request."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0


@dataclass(frozen=True)
class Version:
    """An index that was current: since when, by the clock of the machine, and what it answers."""

    began: float
    answers: dict[str, dict[str, float]]


def make_model(folder: Path, seed: int) -> None:
    """Write a small untrained model."""
    torch.manual_seed(seed)
    encoder = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64}
    tree = {
        "name": f"small{seed}",
        "embed_dim": 64,
        "image": {"encoder": encoder, "aggregator": "mean"},
        "text": {"encoder": {"name": "bigru", "word_dim": 32, "min_count": 1}, "aggregator": "mean"},
        "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": "hinge"}},
        "training": {"phases": [{"epochs": 1}]},
    }
    build_model(parse_recipe(tree), captions=list(SENTENCES)).eval().save(folder)


def draw(path: Path, number: int) -> None:
    """Draw a picture, and put it into place whole."""
    small = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
    large = Image.fromarray(small).resize((320, 240), Image.Resampling.BICUBIC)
    large.save(path.with_suffix(".part"), "JPEG", quality=85)
    path.with_suffix(".part").replace(path)


def update(model: Any, photos: Path, out: Path, *, overwrite: bool = False) -> dict[str, dict[str, float]]:
    """Bring the index up to date, and return what it answers."""
    index(model, photos, out, IndexSettings(towers="none"), overwrite=overwrite)
    engine = SearchEngine(model, Index.open(out))
    answers = engine.answer([Query(text=each) for each in SENTENCES], Page(TOP))
    return {each: {hit.id: hit.score for hit in answer.hits} for each, answer in zip(SENTENCES, answers, strict=True)}


def change(folder: Path, ends: float, replaced: float, log: Path) -> None:
    """Change a picture each second until the end, and write a line of each index that was current."""
    torch.set_num_threads(1)
    drawn, photos = random.Random(0), folder / "photos"
    model, turn = load_two_tower(folder / "model0"), 0
    with log.open("a", buffering=1) as lines:
        while (now := time.time()) < ends:
            turn += 1
            overwrite = now > replaced and model.source.endswith("model0")
            if overwrite:
                model = load_two_tower(folder / "model1")
            there = sorted(photos.glob("*.jpg"))
            if turn % 3 == 0:
                drawn.choice(there).unlink()
            else:
                target = drawn.choice(there) if turn % 3 == 1 else photos / f"{1000 + turn}.jpg"
                draw(target, 1000 + turn)
            began = time.time()
            answers = update(model, photos, folder / "index", overwrite=overwrite)
            lines.write(json.dumps({"began": began, "answers": answers, "replaced": overwrite}) + "\n")
            time.sleep(max(0.0, 1.0 - (time.time() - began)))


async def asked(client: Client, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Return the status and the body of a reply."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n" if body else f"GET {path} HTTP/1.1\r\nHost: localhost\r\n"
    if body:
        head += f"Content-Type: multipart/form-data; boundary=cut\r\nContent-Length: {len(body)}\r\n"
    client.writer.write(f"{head}\r\n".encode() + body)
    answered = await client.reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", answered, re.IGNORECASE)
    return int(answered[9:12]), await client.reader.readexactly(int(length[1]) if length else 0)


def upload(path: Path) -> bytes:
    """Return the body of a request that sends a picture."""
    named = b'form-data; name="image"; filename="a.jpg"'
    head = b"--cut\r\nContent-Disposition: " + named + b"\r\nContent-Type: image/jpeg\r\n\r\n"
    return head + path.read_bytes() + b"\r\n--cut--\r\n"


async def ask_until(port: int, number: int, ends: float, query: Path, seen: dict[str, Seen], found: list[Any]) -> None:
    """Ask one thing after the other until the end; keep how long it took, and the answers to sentences."""
    client, drawn, keys = await Client.connected(port), random.Random(number), [1]
    while time.time() < ends:
        kind, began = drawn.choice(KINDS), time.time()
        sentence = drawn.choice(SENTENCES)
        path = {
            "sentence": f"/api/search?top_k={TOP}&text={quote(sentence)}",
            "words": "/api/search?top_k=10&only=words&text=1000",
            "condition": f"/api/search?top_k=10&text={quote(sentence)}&where={quote('size > 5000')}",
            "item": f"/api/items/{drawn.choice(keys)}/similar?top_k=10",
            "picture": "/api/search/image?top_k=10",
            "thumbnail": f"/api/items/{drawn.choice(keys)}/thumbnail",
        }[kind]
        status, body = await asked(client, path, upload(query) if kind == "picture" else b"")
        ended = time.time()
        seen[kind].seconds.append(ended - began)
        # A picture that was removed since its key was found is gone: 404 and 410 are right answers.
        gone = kind in ("item", "thumbnail") and status in (404, 410)
        seen[kind].errors += status != 200 and not gone
        if status == 200 and kind == "sentence":
            hits = json.loads(body)["hits"]
            keys = [hit["key"] for hit in hits] or keys
            found.append((began, ended, sentence, {hit["id"]: hit["score"] for hit in hits}))


def ages_of(found: Sequence[Any], versions: Sequence[Version]) -> list[float]:
    """Return for each answer how many seconds ago the index that gives it was last current; infinity if none did."""
    ends = [*(version.began for version in versions[1:]), float("inf")]
    ages = []
    for began, ended, sentence, hits in found:
        since = [
            max(0.0, began - until)
            for version, until in zip(versions, ends, strict=True)
            if version.began <= ended and _same(hits, version.answers[sentence])
        ]
        ages.append(min(since, default=float("inf")))
    return ages


def _same(one: dict[str, float], other: dict[str, float]) -> bool:
    """Compare hits but for the last places, which items of equal scores share."""
    return one.keys() == other.keys() and all(abs(one[key] - other[key]) < 1e-4 for key in one)


def measure(folder: Path, minutes: float, pictures: int, clients: int) -> str:
    """Run it all, and return the tables."""
    (folder / "photos").mkdir()
    for number in range(pictures):
        draw(folder / "photos" / f"{number:04d}.jpg", number)
    draw(folder / "query.jpg", 17)
    for seed in (0, 1):
        make_model(folder / f"model{seed}", seed)
    log, first = (
        folder / "versions.jsonl",
        update(load_two_tower(folder / "model0"), folder / "photos", folder / "index"),
    )
    log.write_text(json.dumps({"began": time.time(), "answers": first, "replaced": False}) + "\n")
    ends = time.time() + 60 * minutes
    half = time.time() + 30 * minutes
    changer = multiprocessing.get_context("spawn").Process(target=change, args=(folder, ends, half, log))
    changer.start()
    seen: dict[str, Seen] = defaultdict(Seen)
    found: list[Any] = []
    memory = []
    for number in (0, 1):
        (folder / "model").unlink(missing_ok=True)
        (folder / "model").symlink_to(folder / f"model{number}")
        with serving(folder) as served:

            async def load(port: int = served.port, until: float = (half, ends)[number]) -> None:
                asks = [ask_until(port, each, until, folder / "query.jpg", seen, found) for each in range(clients)]
                await asyncio.gather(*asks)

            began = served.memory
            asyncio.run(load())
            memory.append([number + 1, began / 2**20, served.memory / 2**20, served.open_files])
        while number == 0 and not any(json.loads(line)["replaced"] for line in log.read_text().splitlines()):
            time.sleep(0.2)
    changer.join()
    versions = [Version(each["began"], each["answers"]) for each in map(json.loads, log.read_text().splitlines())]
    ages = ages_of(found, versions)
    rows = [[kind, len(seen[kind].seconds), *_quantiles(seen[kind].seconds), seen[kind].errors] for kind in KINDS]
    return "\n\n".join(
        (
            table(["request", "answers", "p50 ms", "p99 ms", "errors"], rows),
            table(["model", "MiB at the start", "MiB at the end", "open files"], memory),
            f"{len(versions)} indexes in {minutes:g} minutes; {len(found)} answers to sentences, of which "
            f"{sum(age == float('inf') for age in ages)} are of no index that was current, and "
            f"{sum(SEEN_S < age < float('inf') for age in ages)} of one that was not for more than {SEEN_S:g} seconds "
            f"(at most {max((age for age in ages if age < float('inf')), default=0):.1f})",
        )
    )


def _quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(seconds, n=100) if len(seconds) > 1 else [0.0] * 99
    return 1000 * cuts[49], 1000 * cuts[98]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    print(environment())
    folder = Path(tempfile.mkdtemp())
    try:
        print(measure(folder, given.minutes, given.pictures, given.clients))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
