"""An index that is being written and is killed opens, and holds all that was committed."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from old_index import write_old

from openvse.search import Index, Item, compact_index
from openvse.search.database import Root
from openvse.search.manifest import MANIFEST
from openvse.search.writer import Entry, IndexWriter

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
            vectors = np.stack([vector_of(turn) for _ in items])
            writer.append([Entry(item) for item in items], vectors)
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
            compact_index(folder)


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
    found = {item.id: item.modified_ns for item in index.items}
    assert found in (before, after)
    assert (index.vectors[:, 0, 0] == index.table.modified_ns).all()


def upgrade_for_ever(old: Path, folder: Path, sender: Connection) -> None:
    """Upgrade copies of an index of an earlier format, and say before each which one it is."""
    for turn in range(10_000):
        copy = folder / str(turn)  # there only while it is whole
        shutil.copytree(old, folder / "part").rename(copy)
        sender.send(turn)
        with IndexWriter(copy, model="m1", roots=ROOTS):
            pass
        shutil.rmtree(copy.rename(folder / "part"))


def kill_upgrade_once(folder: Path, version: int, seconds: float, count: int = 2000) -> None:
    """Kill an upgrade after a while; the index must hold what it held, and be upgraded by the next writer."""
    items = [Item(f"{number:05d}.jpg", number, 1) for number in range(count)]
    vectors = np.stack([vector_of(number) for number in range(count)])
    old = write_old(folder / "old", items, vectors, version=version)
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=upgrade_for_ever, args=(old, folder, sender))
    process.start()
    sender.close()
    turn = receiver.recv()
    time.sleep(seconds)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while receiver.poll():
        try:
            turn = receiver.recv()
        except EOFError:
            break
    killed = folder / str(turn)
    if not killed.exists():  # it was upgraded, and on its way out
        return
    assert (killed / MANIFEST).exists()
    for _ in range(2):
        index = Index.open(killed, check=True)
        assert index.items == tuple(items)
        assert (index.vectors[:, 0, 0] == np.arange(count)).all()
        with IndexWriter(killed, model="m1", roots=ROOTS):
            pass
    assert not Index.open(killed).manifest.vectors  # of today's format by now
    assert len([*killed.glob("items-*")]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_a_killed_upgrade_loses_nothing(tmp_path: Path, version: int) -> None:
    draw = random.Random(version)
    for number in range(3):
        kill_upgrade_once(tmp_path / str(number), version, draw.uniform(0.0, 0.05), 300)


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
