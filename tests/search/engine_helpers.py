"""Indexes of random embeddings, and their engines, for the contract of the engines."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from openvse.functional import normalize
from openvse.indexing import Index
from openvse.indexing.database import Database, Root
from openvse.indexing.manifest import Item
from openvse.indexing.writer import Entry, IndexWriter
from openvse.runtime.arrays import ArraySet
from openvse.search.catalogue import open_searcher
from openvse.search.exact import EmbeddedQueries, ExactSearch
from openvse.search.proposing import Searcher
from openvse.stores.following import plan_engine, update_engine

DIM = 12
ROOTS = [Root(0, "/photos", "")]


def unit(count: int, num_embeddings: int = 1, seed: int = 0) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, num_embeddings, DIM, generator=generator)).numpy()


def queries(count: int, num_embeddings: int = 1, seed: int = 1, weights: np.ndarray | None = None) -> EmbeddedQueries:
    """Return queries, of which every second one has an embedding less if they have several."""
    mask = np.ones((count, num_embeddings), dtype=bool)
    if num_embeddings > 1:
        mask[::2, -1] = False
    return EmbeddedQueries(ArraySet(unit(count, num_embeddings, seed), mask), weights)


def name_of(number: int) -> str:
    return f"{number:05d}.jpg"


def write(folder: Path, numbers: Sequence[int], vectors: np.ndarray, gone: Sequence[int] = ()) -> None:
    """Add or replace items, say something of each, and remove others; every third is a clip."""
    with IndexWriter(folder, model="random-1", roots=ROOTS) as writer:
        entries = [
            Entry(Item(name_of(number), 10**18 + number * 10**9, number), 0, "image" if number % 3 else "clip")
            for number in numbers
        ]
        if entries:
            writer.append(entries, vectors)
        writer.drop([name_of(number) for number in gone])

        def describe(database: Database) -> None:
            keys = dict(database.read("SELECT id, key FROM items"))
            database.describe([(json.dumps(metadata(each)), "{}", keys[name_of(each)]) for each in numbers])

        writer.at_the_end(describe)


def metadata(number: int) -> dict[str, object]:
    return {
        "file_name": name_of(number),
        "year": 2000 + number % 7 if number % 5 else str(2000 + number % 7),
        "tags": ["snow", f"t{number % 4}"],
        'a "b.c': number % 2 == 0,
        "big": 10**30,
        "broken": "a\0b\ud800",
        "camera": ("Böse X100", "x100 II", "BOSE x100")[number % 3],
        "flag": (True, "True", "false", False)[number % 4],
        "made": ("2024-05-31", "2023", "2024-06-01T10:00")[number % 3],
    }


def exact_of(index: Index) -> ExactSearch:
    return ExactSearch(index.vector_files, names=index.table.ids)


def engine_of(folder: Path, name: str | None = None, url: str | None = None) -> tuple[Searcher, ExactSearch]:
    """Choose an engine, bring it up to date and open it; return it beside the exact one."""
    plan_engine(folder, url or name).note(folder)
    update_engine(folder, url=url)
    return opened(folder, url)


def opened(folder: Path, url: str | None = None) -> tuple[Searcher, ExactSearch]:
    index = Index.open(folder)
    exact = exact_of(index)
    return open_searcher(index, exact, engine=url), exact
