"""Writing: refuses what does not fit, survives whatever stops it, continues as if nothing had been."""

import errno
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import openvse
from openvse.errors import BadFeaturesError, DiskError, StoreError
from openvse.features.extract import FeatureStoreWriter
from openvse.features.store import FEATURES, IDS, LENGTHS, MANIFEST, FeatureStore, StoreDtype, StoreManifest
from openvse.files import LOCK
from tests.naming import names, refusal

DIM = 3
CONTENT = (FEATURES, LENGTHS, IDS, MANIFEST)


def open_writer(path: Path, dtype: StoreDtype = "float16") -> FeatureStoreWriter:
    return FeatureStoreWriter(path, fingerprint="fake", dim=DIM, dtype=dtype)


def make_items(count: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {f"item {i}": torch.randn(1 + i % 4, DIM, generator=generator) for i in range(count)}


def write(path: Path, items: Mapping[str, Tensor]) -> None:
    with open_writer(path) as writer:
        for item, local in items.items():
            if item not in writer:
                writer.add(item, local)


def content(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in CONTENT}


@pytest.mark.parametrize(
    "local",
    [
        torch.arange(12.0).view(3, 4).T,
        torch.ones(2, 6)[:, ::2],
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(2, 3, requires_grad=True),
        torch.tensor([[1e30, 1 / 3, -7e-30]]),
    ],
    ids=["transposed", "strided", "bfloat16", "float64", "with gradient", "every bit"],
)
def test_any_tensor_can_be_added(tmp_path: Path, local: Tensor) -> None:
    with open_writer(tmp_path, "float32") as writer:
        writer.add("x", local)
    store = FeatureStore(tmp_path)
    assert torch.equal(store.gather(store.positions(["x"])).values[0], local.detach().float())


@pytest.mark.parametrize(
    ("item", "local", "message"),
    [
        ("bad", torch.zeros(2, 4), "'bad'.*2.*4.*3"),
        ("bad", torch.zeros(0, 3), r"'bad'.* \[0, 3\]"),
        ("bad", torch.tensor([[0.0, float("nan"), 1.0]]), "'bad'.*NaN"),
        ("bad", torch.tensor([[0.0, float("-inf"), 1.0]]), "'bad'.*NaN"),
        ("bad", torch.tensor([[0.0, -65505.0, 1.0]]), "'bad'.*65505.*65504"),
        ("good", torch.zeros(1, 3), "'good'"),
        ("old", torch.zeros(1, 3), "'old'"),
        ("two\nlines", torch.zeros(1, 3), r"'two\\nlines'"),
        ("", torch.zeros(1, 3), "''"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, item: str, local: Tensor, message: str) -> None:
    write(tmp_path, {"old": torch.ones(2, 3)})
    with pytest.raises(StoreError, match=message) as error, open_writer(tmp_path) as writer:
        writer.add("good", torch.full((1, 3), 65504.0))
        writer.add(item, local)
    assert "\n" not in str(error.value)
    store = FeatureStore(tmp_path)
    assert store.ids == ("old", "good"), "what came before the refusal is kept"
    assert store.gather(store.positions(["good"])).values.unique().item() == 65504.0


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        (None, "'bad'.*2.*4"),
        (torch.zeros(3, 4), "'bad'.*3.*4.*2.*4"),
        (torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.5]]), "'bad'"),
        (torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.5, 0.0, 0.4, 1.0]]), "'bad'"),
        (torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, float("nan")]]), "'bad'"),
        (torch.tensor([[0.0, 0.0, 1.0, 1.0], [-0.1, 0.0, 1.0, 1.0]]), "'bad'"),
    ],
)
def test_a_store_with_boxes_takes_boxes_alone(tmp_path: Path, boxes: Tensor | None, message: str) -> None:
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    with FeatureStoreWriter(tmp_path, fingerprint="fake", dim=DIM, boxes=True) as writer:
        writer.add("good", torch.ones(1, DIM), whole)
        with pytest.raises(BadFeaturesError, match=message):
            writer.add("bad", torch.ones(2, DIM), boxes)
        writer.add("next", torch.full((1, DIM), 2.0), whole / 2)
    store = FeatureStore(tmp_path)
    assert store.ids == ("good", "next")
    assert torch.equal(store.boxes(np.array([1, 0]))[:, 0], torch.cat([whole / 2, whole]))


def test_only_what_is_committed_can_be_read(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        assert len(FeatureStore(tmp_path)) == 0, "a store opens from its first moment"
        writer.add("a", torch.ones(2, DIM))
        assert "a" in writer and "b" not in writer and len(writer) == 1
        assert len(FeatureStore(tmp_path)) == 0
        writer.commit()
        writer.commit()
        assert FeatureStore(tmp_path).ids == ("a",)


def test_a_continued_store_equals_one_written_at_once(tmp_path: Path) -> None:
    items = make_items(20)
    write(tmp_path / "once", items)
    for count in (0, 1, 7, 7, 20, 20):
        write(tmp_path / "parts", dict(list(items.items())[:count]))
    assert content(tmp_path / "parts") == content(tmp_path / "once")
    assert StoreManifest.read(tmp_path / "once").created_by == openvse.__version__


def test_the_rest_of_an_interrupted_write_is_cut_off(tmp_path: Path) -> None:
    items = make_items(8)
    write(tmp_path / "once", items)
    broken = tmp_path / "broken"
    write(broken, dict(list(items.items())[:5]))
    for name in (FEATURES, LENGTHS, IDS):
        with (broken / name).open("ab") as file:
            file.write(b"garbage" * 100)
    (broken / f".{MANIFEST}.partial").write_text("{")
    assert len(FeatureStore(broken)) == 5
    write(broken, items)
    assert content(broken) == content(tmp_path / "once")


class Stopped(BaseException):
    """Stands for a Ctrl-C or a crash at a chosen moment."""


def stop_at(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, call: int, error: BaseException
) -> Callable[[], None]:
    """Let the given call of a function fail, and return what makes it work again."""
    original, calls = getattr(owner, name), []

    def failing(*args: object) -> object:
        calls.append(args)
        if len(calls) == call:
            raise error
        return original(*args)

    monkeypatch.setattr(owner, name, failing)
    return monkeypatch.undo


# A commit waits for the disk four times (three files and the manifest) and renames once.
MOMENTS = [(os, "fsync", 1), (os, "fsync", 2), (os, "fsync", 3), (os, "fsync", 4), (Path, "replace", 1)]


@pytest.mark.parametrize(("owner", "name", "call"), MOMENTS)
def test_a_commit_stopped_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, call: int
) -> None:
    items = make_items(9)
    write(tmp_path / "once", items)
    stopped = tmp_path / "stopped"
    write(stopped, dict(list(items.items())[:4]))
    writer = open_writer(stopped)
    for item in list(items)[4:7]:
        writer.add(item, items[item])
    work_again = stop_at(monkeypatch, owner, name, call, Stopped())
    refusal(Stopped, writer.commit)
    work_again()
    assert FeatureStore(stopped).ids == tuple(items)[:4]
    left = shutil.copytree(stopped, tmp_path / "left")  # what a process that ended there leaves on disk
    write(left, items)
    assert content(left) == content(tmp_path / "once")
    writer.close()
    assert FeatureStore(stopped).ids == tuple(items)[:7], "a writer that lives on commits the same again"
    write(stopped, items)
    assert content(stopped) == content(tmp_path / "once")


def test_an_interrupt_after_the_rename_repeats_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = make_items(6)
    write(tmp_path / "once", items)
    manifest_write = StoreManifest.write

    def write_then_stop(self: StoreManifest, folder: Path) -> None:
        manifest_write(self, folder)
        raise Stopped

    with open_writer(tmp_path / "stopped") as writer:
        for item, local in items.items():
            writer.add(item, local)
        monkeypatch.setattr(StoreManifest, "write", write_then_stop)
        refusal(Stopped, writer.commit)
        monkeypatch.undo()
    assert content(tmp_path / "stopped") == content(tmp_path / "once")


def test_a_full_disk_is_one_line_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = make_items(4)
    write(tmp_path / "once", items)
    with open_writer(tmp_path / "full") as writer:
        for item, local in items.items():
            writer.add(item, local)
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        work_again = stop_at(monkeypatch, os, "fsync", 1, full)
        with pytest.raises(DiskError, match="full|file") as error:
            writer.commit()
        assert "\n" not in str(error.value)
        work_again()
    assert content(tmp_path / "full") == content(tmp_path / "once")


def write_without_end(path: Path) -> None:
    with open_writer(path) as writer:
        for number, (item, local) in enumerate(make_items(5_000).items()):
            if item not in writer:
                writer.add(item, local)
                if number % 10 == 9:
                    writer.commit()


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "killed"
    context = multiprocessing.get_context("fork")
    seen = 0
    for _ in range(3):
        process = context.Process(target=write_without_end, args=(path,))
        process.start()
        deadline = time.monotonic() + 30
        while not ((path / MANIFEST).exists() and StoreManifest.read(path).items > seen + 50):
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.01)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        store = FeatureStore(path, "fake")
        assert len(store) > seen and len(store) % 10 == 0
        seen = len(store)
    # Its lock is left behind and belongs to nobody.
    assert (path / LOCK).read_text() == str(process.pid)
    count = seen + 25
    items = make_items(count)
    write(path, items)
    write(tmp_path / "once", items)
    assert content(path) == content(tmp_path / "once")


def test_two_writers_at_once(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        assert names(refusal(StoreError, open_writer, tmp_path), os.getpid())
        writer.add("a", torch.ones(1, DIM))
    with open_writer(tmp_path) as writer:
        assert "a" in writer


def test_a_lock_that_nobody_holds_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("1")
    with open_writer(tmp_path):
        assert (tmp_path / LOCK).read_text() == str(os.getpid())


def test_a_store_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, make_items(3))
    before = content(tmp_path)
    for fingerprint, dim, dtype, boxes, message in (
        ("other", DIM, "float16", False, "'fake'.*'other'"),
        ("fake", 4, "float16", False, "float16.* 3.*float16.* 4"),
        ("fake", DIM, "float32", False, "float16.* 3.*float32.* 3"),
        ("fake", DIM, "float16", True, "float16.* 3.*float16.* 3.*boxes"),
    ):
        with pytest.raises(StoreError, match=message):
            FeatureStoreWriter(tmp_path, fingerprint=fingerprint, dim=dim, dtype=dtype, boxes=boxes)
    assert content(tmp_path) == before
    write(tmp_path, make_items(4))  # none of the refused ones still holds the lock


def test_features_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / FEATURES).write_bytes(b"x" * 1000)
    assert names(refusal(StoreError, open_writer, tmp_path), "features.npy", "store.json")
    assert (tmp_path / FEATURES).read_bytes() == b"x" * 1000


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="full|file"):
        open_writer(tmp_path / "file")


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.add("a", torch.ones(1, DIM))
    writer.close()
    writer.close()
    assert len(FeatureStore(tmp_path)) == 1
