"""Indexing that is stopped goes on, and nothing is replaced unasked.

An index that is being written and is killed opens, and holds all that was committed.
"""

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colour_model import ColourModel, Pixels, paint
from openvse import pipeline
from openvse.errors import IndexFormatError
from openvse.files import LOCK
from openvse.indexing import Index, build_index
from openvse.indexing.database import Entry, Root
from openvse.indexing.manifest import MANIFEST, UNFINISHED, IndexManifest, IndexSettings, Item
from openvse.indexing.writer import IndexFolder, IndexWriter, rewrite
from openvse.types import EmbeddingSet
from tests.full_disk import full_disk
from tests.naming import names, refusal

NAMES = [f"{number:02d}.png" for number in range(20)]


class SlowModel(ColourModel):
    """Needs a moment for every batch."""

    def encode_pixels(self, images: Sequence[Pixels]) -> EmbeddingSet:
        time.sleep(0.05)
        return super().encode_pixels(images)


class StoppedModel(ColourModel):
    """Is stopped by Ctrl-C after some batches."""

    left = 3

    def encode_pixels(self, images: Sequence[Pixels]) -> EmbeddingSet:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().encode_pixels(images)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES):
        paint(tmp_path / "photos" / name, ("red", "green", "blue", "white")[number % 4])
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def keep_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "KEEP_SECONDS", 0.0)


def stop(photos: Path, out: Path, batches: int) -> None:
    """Index until a Ctrl-C after so many batches of two."""
    model = StoppedModel()
    model.left = batches
    with pytest.raises(KeyboardInterrupt):
        build_index(model, photos, out, batch_size=2)


def content(out: Path) -> dict[str, bytes]:
    """Return the bytes of all files of an index but its lock."""
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name != LOCK}


def assert_like_a_fresh_one(out: Path, photos: Path, model: ColourModel) -> None:
    build_index(ColourModel(), photos, out.with_name("fresh"))
    found, fresh = Index.open(out, model.fingerprint, check=True), Index.open(out.with_name("fresh"))
    assert found.items == fresh.items
    assert np.array_equal(found.vectors, fresh.vectors)
    vectors = [path.name for path in out.glob("vectors-*.npy")]
    assert {path.name for path in out.iterdir()} == {MANIFEST, LOCK, found.manifest.items, *vectors}
    assert len(vectors) == len(found.vector_files) and found.is_complete


@pytest.mark.medium
def test_a_killed_indexing_goes_on(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    process = multiprocessing.get_context("fork").Process(
        target=build_index, args=(SlowModel(), photos, out), kwargs={"batch_size": 2}
    )
    process.start()
    while not (out / MANIFEST).exists() or len(Index.open(out)) < 6:
        assert process.is_alive()
        time.sleep(0.005)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not Index.open(out, check=True).is_complete
    report = build_index(model, photos, out, batch_size=2)
    assert 6 <= report.resumed < 20
    assert (report.count, report.reused, len(model.encoded)) == (20, 0, 20 - report.resumed)
    assert_like_a_fresh_one(out, photos, model)


@pytest.mark.medium
def test_stopped_twice_nothing_is_embedded_twice(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    """The second time an image at the front has changed, and new ones come before all others."""
    out = tmp_path / "index"
    stop(photos, out, 8)
    paint(photos / NAMES[0], "white")
    os.utime(photos / NAMES[0], ns=(1, 1))
    for name in ("000.png", "001.png", "002.png"):
        paint(photos / name, "red")
    stop(photos, out, 1)
    assert len(Index.open(out, check=True)) >= 16
    report = build_index(model, photos, out, batch_size=2)
    assert report.resumed >= 16
    assert report.resumed + report.recognised + len(model.encoded) == report.count == 23
    assert_like_a_fresh_one(out, photos, model)


@pytest.mark.medium
def test_an_update_that_is_stopped_leaves_the_old_index_and_goes_on(
    model: ColourModel, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "index"
    build_index(model, photos, out)
    for number in range(6):
        paint(photos / f"z{number}.png", "red")
    stop(photos, out, 2)
    assert len(Index.open(out, check=True)) == 24
    model.batches.clear()
    report = build_index(model, photos, out, batch_size=2)
    assert (report.reused, report.resumed, model.encoded) == (20, 4, ["z4.png", "z5.png"])
    assert_like_a_fresh_one(out, photos, model)


@pytest.mark.medium
@pytest.mark.parametrize(("harm", "resumed"), [("vectors", 9), ("manifest", 0)])
def test_what_was_kept_and_is_damaged_is_not_used(
    model: ColourModel, photos: Path, tmp_path: Path, harm: str, resumed: int
) -> None:
    out = tmp_path / "index"
    stop(photos, out, 5)
    path = out / MANIFEST if harm == "manifest" else next(out.glob(f"{harm}-*"))
    content = path.read_bytes()
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:] if harm != "manifest" else b"{")
    assert build_index(model, photos, out).resumed == resumed
    assert_like_a_fresh_one(out, photos, model)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("other", ["model", "folder"])
def test_an_index_of_something_else_is_replaced_on_request_alone(
    model: ColourModel, photos: Path, tmp_path: Path, finished: bool, other: str
) -> None:
    out = tmp_path / "index"
    if finished:
        build_index(model, photos, out)
    else:
        stop(photos, out, 2)
    before = content(out)
    paint(tmp_path / "more" / NAMES[0], "red")
    maker = ColourModel("colours-2") if other == "model" else ColourModel()
    folder = tmp_path / "more" if other == "folder" else photos
    expected = ("colours-1", "colours-2") if other == "model" else (photos, folder)
    assert names(refusal(IndexFormatError, build_index, maker, folder, out), *expected, "--out", "--overwrite")
    assert content(out) == before
    assert build_index(maker, folder, out, overwrite=True).reused == 0
    assert Index.open(out, maker.fingerprint).manifest.root == str(folder)
    assert not (out / UNFINISHED).exists()


def test_an_index_of_a_later_format_is_replaced_on_request_alone(
    model: ColourModel, photos: Path, tmp_path: Path
) -> None:
    build_index(model, photos, tmp_path / "index")
    manifest = tmp_path / "index" / MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 5, "more": 1}))
    assert names(refusal(IndexFormatError, build_index, model, photos, tmp_path / "index"), "5", "--overwrite")
    build_index(model, photos, tmp_path / "index", overwrite=True)


@pytest.mark.medium
def test_a_disk_that_is_full_leaves_the_old_index(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    build_index(model, photos, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for number in range(200):
        paint(photos / f"z{number}.png", "red")
    with full_disk(2000), pytest.raises(IndexFormatError, match=r"index"):
        build_index(model, photos, out, batch_size=10)
    assert before.keys() == {path.name for path in out.iterdir()}
    assert len(Index.open(out, check=True)) == 20
    build_index(model, photos, out)
    assert_like_a_fresh_one(out, photos, model)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_signal_just_after_an_index_got_its_name_removes_none_of_its_files(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    out, write = tmp_path / "index", IndexManifest.write
    if overwrite:
        build_index(ColourModel(), photos, out)

    def stopped(self: IndexManifest, *words: Any) -> None:
        write(self, *words)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(IndexManifest, "write", stopped)
        build_index(ColourModel(), photos, out, overwrite=overwrite, settings=IndexSettings(dtype="float16"))
    Index.open(out, check=True)
    build_index(ColourModel(), photos, out)
    assert len(Index.open(out, check=True)) == len(NAMES)


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
