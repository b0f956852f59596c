"""Indexing that is shared by processes: the same items and embeddings, whoever embeds them and in which order."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_clip_segments import ClipColours, film

from colour_model import COLOURS, ColourModel, paint
from openvse.errors import DataError
from openvse.indexing import Index, build_index
from openvse.indexing.embedding import BATCHES_IN_PART, Sharing, cut_candidates
from openvse.indexing.manifest import IndexSettings, Item
from openvse.indexing.scanning import Candidate
from openvse.pipeline import Workers, WorkProgress
from tests.pickled_work import PickledWork, pickled_work


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> PickledWork:
    return pickled_work(monkeypatch)


def sharing(load: Callable[[], ColourModel] = ColourModel) -> Sharing:
    return Sharing(Workers(2), load)


def content(folder: Path) -> list[tuple[object, list[float]]]:
    index = Index.open(folder)
    return [(item, row.ravel().tolist()) for item, row in zip(index.items, np.asarray(index.vectors), strict=True)]


@pytest.mark.medium
def test_the_index_is_that_of_one_process(model: ColourModel, workers: PickledWork, tmp_path: Path) -> None:
    for number in range(23):
        paint(tmp_path / "photos" / f"{number:02d}.png", [*COLOURS][number % len(COLOURS)])
    (tmp_path / "photos" / "05 broken.png").write_text("no image")
    alone = build_index(model, tmp_path / "photos", tmp_path / "alone", batch_size=2)
    seen: list[WorkProgress] = []
    shared = build_index(
        ColourModel(), tmp_path / "photos", tmp_path / "shared", batch_size=2, sharing=sharing(), progress=seen.append
    )
    assert shared == alone and len(shared.failed) == 1
    assert content(tmp_path / "shared") == content(tmp_path / "alone")
    assert [len(part) for _, part in workers.taken] == [2] * 12
    assert (seen[-1].done, seen[-1].total) == (24, 24)


def test_only_what_is_new_is_shared(model: ColourModel, workers: PickledWork, photos: Path, tmp_path: Path) -> None:
    build_index(model, photos, tmp_path / "index")
    paint(photos / "a.png", "white")
    (photos / "b.png").write_bytes((photos / "a.png").read_bytes())
    (photos / "red.png").rename(photos / "moved.png")
    paint(photos / "green.png", "blue")
    os.utime(photos / "green.png", ns=(1, 1))
    model.batches.clear()
    report = build_index(model, photos, tmp_path / "index", sharing=sharing())
    assert [each.item.id for _, part in workers.taken for each in part] == ["a.png", "b.png", "green.png"]
    assert not model.batches and (report.count, report.recognised, report.removed) == (6, 1, 1)
    build_index(ColourModel(), photos, tmp_path / "fresh")
    assert content(tmp_path / "index") == content(tmp_path / "fresh")
    workers.taken.clear()
    assert build_index(model, photos, tmp_path / "index", sharing=sharing()).reused == 6
    assert not workers.taken


@pytest.mark.medium
@pytest.mark.usefixtures("workers")
def test_clips_that_are_cut(tmp_path: Path) -> None:
    film(tmp_path / "photos" / "a.mp4", "red", "green", "blue")
    paint(tmp_path / "photos" / "b.png", "green")
    film(tmp_path / "photos" / "c.mp4", "white", "red")
    for name, shared in (("alone", None), ("shared", sharing(ClipColours))):
        build_index(
            ClipColours(),
            tmp_path / "photos",
            tmp_path / name,
            settings=IndexSettings(segment_seconds=1.0),
            sharing=shared,
        )
    assert content(tmp_path / "shared") == content(tmp_path / "alone")
    assert len(Index.open(tmp_path / "shared")) == 6


@pytest.mark.usefixtures("workers")
def test_nothing_that_can_be_used_is_refused_as_by_one_process(model: ColourModel, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_text("no image")
    with pytest.raises(DataError, match="1 images"):
        build_index(model, tmp_path / "photos", tmp_path / "index", sharing=sharing())


@pytest.mark.medium
def test_parts_are_whole_batches_and_enough_for_all() -> None:
    some = [Candidate(Item(f"{number:05d}", 0, 0), Path("x"), 0, "image") for number in range(10_000)]
    many = cut_candidates(some, 64, 2)
    assert {len(each) for each in many[:-1]} == {64 * BATCHES_IN_PART}
    assert sum(len(each) for each in many) == 10_000
    few = cut_candidates(some[:1000], 64, 2)
    assert [len(each) for each in few] == [128] * 7 + [104]
    assert [len(each) for each in cut_candidates(some[:70], 64, 8)] == [64, 6]
