"""The exact engine beside one pass over the vectors and the bare matrix product; adding an image; the other engines.

    python benchmarks/search.py [--items 100000] [--dim 1024] [--repeats 11] [--only products adding engines words]
                                [--engines exact int8 pgvector faiss_flat faiss_hnsw usearch hnswlib]
                                [--place FOLDER] [--rows FILE]

All sides of the first table take turns in one run. The second says what it costs to add one item to an index of so
many, and the third compares engines over drawn embeddings (``_drawn.py``), one after the other. With ``--place``, their
index stays in a folder, so each engine can be measured by a call of its own; ``--rows`` appends the rows to a file.
The last table compares visual similarity alone with words and visual similarity together (``--only words --items
200000 --dim 512``): each of three words of the sentence is in 9 % of the items, a third of these with a plural, and
``sky`` is in 30 %.
FAISS and usearch need the extra ``bench``, and hnswlib a compiler. The engine ``qdrant`` needs a server, whose URL is
in OPENVSE_QDRANT_URL.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from _measure import environment, median_times, table
from _search_engines import HEADER, measure_engines
from openvse.functional import normalize
from openvse.indexing import Index
from openvse.indexing.database import Entry, Root
from openvse.indexing.manifest import Item
from openvse.indexing.writer import IndexWriter
from openvse.runtime.arrays import ArraySet
from openvse.search import Page, SearchEngine
from openvse.search.exact import EmbeddedQueries, ExactSearch

TOP_K = 10
MANY = 64
REST = 0.02
WORDS, PLURALS = np.array(["red", "dog", "beach", "sky"]), np.array(["reds", "dogs", "beaches", "sky"])
WORD_SHARE, COMMON_SHARE = 0.09, 0.3


def queries_of(count: int, dim: int) -> EmbeddedQueries:
    vectors = normalize(torch.randn(count, 1, dim, generator=torch.Generator().manual_seed(1)))
    return EmbeddedQueries(ArraySet.full(vectors.numpy()), None)


def product_in_chunks(vectors: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Multiply in batches, one a thread."""
    parts = torch.get_num_threads()
    rows = len(vectors) // parts * parts
    some = vectors[:rows].view(parts, rows // parts, -1)
    return torch.bmm(some, query.expand(parts, -1).unsqueeze(2))


def compare_products(items: int, dim: int, repeats: int) -> str:
    """Return the table of one query and of many."""
    vectors = normalize(torch.randn(items, dim, generator=torch.Generator().manual_seed(0)))
    half = vectors.half()
    one, many = queries_of(1, dim), queries_of(MANY, dim)
    query = torch.from_numpy(one.parts.vectors[0, 0])
    matrix = torch.from_numpy(many.parts.vectors[:, 0]).T.contiguous()
    single, double = ExactSearch(vectors.unsqueeze(1).numpy()), ExactSearch(half.unsqueeze(1).numpy())
    sides: list[tuple[str, Callable[[], object]]] = [
        ("one pass over the vectors (sum)", vectors.sum),
        ("product, mv", partial(torch.mv, vectors, query)),
        ("product, mm", partial(torch.mm, vectors, query.unsqueeze(1))),
        ("product, a batch a thread", partial(product_in_chunks, vectors, query)),
        ("product in float16, mv", partial(torch.mv, half, query.half())),
        ("engine, 1 query", partial(single.search, one, TOP_K)),
        ("engine, 1 query, float16", partial(double.search, one, TOP_K)),
        (f"product, {MANY} queries", partial(torch.mm, vectors, matrix)),
        (f"engine, {MANY} queries", partial(single.search, many, TOP_K)),
        (f"engine, {MANY} queries, float16", partial(double.search, many, TOP_K)),
    ]
    seconds = dict(
        zip((name for name, _ in sides), median_times([side for _, side in sides], repeats, rest=REST), strict=True)
    )
    one_pass, product = seconds[sides[0][0]], seconds[f"product, {MANY} queries"]
    rows = [
        [name, 1000 * taken, taken / (product if str(MANY) in name else one_pass)] for name, taken in seconds.items()
    ]
    return table(["what", "ms", f"ratio to the pass, or to the product of {MANY}"], rows)


def add_one(folder: Path, items: int, dim: int) -> str:
    """Return the table of what it costs to make an index, to open it and to add one item."""
    roots = [Root(0, str(folder), "")]
    draw = np.random.default_rng(0)
    taken = []

    def write(first: int, count: int, block: int = 10_000) -> None:
        with IndexWriter(folder, model="benchmark", roots=roots) as writer:
            for start in range(first, first + count, block):
                names = range(start, min(start + block, first + count))
                entries = [Entry(Item(f"{name:09d}.jpg", name, name)) for name in names]
                writer.append(entries, draw.random((len(entries), 1, dim), np.float32))

    steps: list[tuple[str, Callable[[], object]]] = [
        (f"write {items:,} items", partial(write, 0, items)),
        ("open", partial(Index.open, folder)),
        ("add 1", partial(write, items, 1)),
    ]
    for name, step in steps:
        started = time.perf_counter()
        step()
        taken.append([name, time.perf_counter() - started])
    return table(["what", "seconds"], taken)


class Drawn:
    """A model whose sentences are drawn."""

    fingerprint, kind = "benchmark", "inner"

    def __init__(self, dim: int) -> None:
        self._query = queries_of(1, dim).parts

    def encode_text(self, captions: list[str]) -> ArraySet:
        return self._query[[0] * len(captions)]

    def encode_image(self, images: list[str]) -> ArraySet:
        raise NotImplementedError


def write_described(folder: Path, items: int, dim: int, block: int = 20_000) -> None:
    """Write an index of drawn embeddings, in which each of ``WORDS`` or its plural is in so many captions."""
    draw = np.random.default_rng(0)
    for start in range(0, items, block):
        rows = range(start, min(start + block, items))
        vectors = draw.standard_normal((len(rows), 1, dim), np.float32)
        vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
        has = draw.random((len(rows), len(WORDS))) < [WORD_SHARE] * 3 + [COMMON_SHARE]
        rare = draw.integers(20_000, size=(len(rows), 4))
        captions = [
            " ".join([*words, *(f"word{each}" for each in rare[place])])
            for place in range(len(rows))
            for words in [(PLURALS if place % 3 == 0 else WORDS)[has[place]]]
        ]
        entries = [
            Entry(Item(f"IMG_{row:07d}.jpg", row, row), header=json.dumps({"caption": caption}))
            for row, caption in zip(rows, captions, strict=True)
        ]
        with IndexWriter(folder, model="benchmark", roots=[Root(0, str(folder), "")]) as writer:
            writer.append(entries, vectors)


def compare_words(folder: Path, items: int, dim: int, repeats: int) -> str:
    """Return the table of visual similarity, of words, and of both."""
    if not (folder / "index.json").exists():
        write_described(folder, items, dim)
    rows = []
    with SearchEngine(Drawn(dim), Index.open(folder)) as engine:
        for sentence in (
            "a red dog on the beach",
            "a red dog word7",
            "a sky word7",
            "beach",
            "sky",
            "IMG_0001234",
            "jpg",
        ):
            sides = [partial(engine.answer, sentence, Page(10, only=only)) for only in ("similarity", "words", None)]
            looks, words, both = median_times(sides, repeats, rest=REST)
            rows.append([sentence, 1000 * looks, 1000 * words, 1000 * both, both / looks])
    return table(["sentence", "similarity, ms", "words alone, ms", "both, ms", "ratio"], rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--only", nargs="+", default=["products", "adding", "engines"])
    parser.add_argument("--engines", nargs="+", default=["exact", "int8"])
    parser.add_argument("--place", type=Path)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    arguments = parser.parse_args()
    print(f"{arguments.items:,} x {arguments.dim}, the best {TOP_K}; {environment()}\n")
    if "products" in arguments.only:
        print(compare_products(arguments.items, arguments.dim, arguments.repeats))
    if "adding" in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n{add_one(Path(folder), arguments.items, arguments.dim)}")
    if "words" in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            place = arguments.place or Path(folder)
            print(f"\n{compare_words(place, arguments.items, arguments.dim, arguments.repeats)}")
    if "engines" in arguments.only:
        print(f"\n{table(HEADER, [])}")
        kind = arguments.items, arguments.dim, arguments.engines, arguments.dtype, arguments.place
        for row in measure_engines(*kind):
            line = table(HEADER, [row]).splitlines()[2]
            print(line, flush=True)
            if arguments.rows:
                with arguments.rows.open("a") as file:
                    file.write(f"{line}\n")


if __name__ == "__main__":
    main()
