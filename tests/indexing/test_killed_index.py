"""An index that is being written and is killed opens, and holds all that was committed."""

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from openvse.indexing import Index
from openvse.indexing.database import Entry, Root
from openvse.indexing.manifest import Item
from openvse.indexing.writer import IndexFolder, IndexWriter, rewrite

ROOTS = [Root(0, "/photos", "")]


def vector_of(number: int) -> np.ndarray:
    """Return embeddings that tell to which item they belong."""
    return np.full((1, 64), number, np.float32)


def write_for_ever(folder: Path, seed: int, sender: Connection) -> None:
    """Add, update, remove and compact, and say what is stored: the ids with their versions."""
    draw = random.Random(seed)
    stored: dict[str, int] = {}
    for turn in range(1, 10_000):
        with IndexWriter(folder, model="m", roots=ROOTS) as writer:
            names = [f"{draw.randrange(400)}.jpg" for _ in range(draw.randrange(1, 60))]
            items = [Item(name, turn, 1) for name in dict.fromkeys(names)]
            writer.append([Entry(item) for item in items], np.stack([vector_of(turn) for _ in items]))
            gone = draw.sample(sorted(stored), min(len(stored), draw.randrange(10)))
            gone = [name for name in gone if name not in names]
            writer.drop(gone)
            now = dict.fromkeys(names, turn) | {
                name: old for name, old in stored.items() if name not in {*gone, *names}
            }
            sender.send((stored, now))
            writer.finish()
        stored = now
        sender.send((stored, stored))
        if draw.random() < 0.2:
            with IndexFolder(folder) as opened:
                index = opened.find()
                assert index is not None
                rewrite(index)


def kill_once(folder: Path, seed: int, seconds: float) -> None:
    """Kill a writer after a while; the index must be one of the two states between which it was."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(folder, seed, sender))
    process.start()
    sender.close()
    before, after = receiver.recv()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if receiver.poll(0.001):
            before, after = receiver.recv()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while receiver.poll():
        try:
            before, after = receiver.recv()
        except EOFError:
            break
    assert_holds(folder, before, after)


def assert_holds(folder: Path, before: dict[str, int], after: dict[str, int]) -> None:
    if not before and not (folder / "index.json").exists():
        return
    index = Index.open(folder, check=True)
    assert {item.id: item.modified_ns for item in index.items} in (before, after)
    assert (index.vectors[:, 0, 0] == index.table.modified_ns).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_writer_leaves_what_it_committed(tmp_path: Path, seed: int) -> None:
    kill_once(tmp_path / "index", seed, random.Random(seed).uniform(0.05, 0.5))
    with IndexWriter(tmp_path / "index", model="m", roots=ROOTS) as writer:  # and the next goes on
        writer.append([Entry(Item("next.jpg", 7, 1))], vector_of(7)[None])
    index = Index.open(tmp_path / "index", check=True)
    assert index.position("next.jpg") is not None
    named = {path.name for path in (tmp_path / "index").iterdir()}
    assert len([name for name in named if name.startswith("items-")]) == 1
