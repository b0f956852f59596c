"""Clips that are cut into segments, each an item with its time."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from colour_model import COLOURS, ColourModel, Pixels, paint
from openvse.errors import DataError, IndexFormatError
from openvse.indexing import Index, build_index
from openvse.indexing.manifest import IndexSettings
from openvse.indexing.writer import forget_folder
from openvse.media.segments import ClipSegment, cut_clip
from openvse.media.videos import ClipSource, FrameSampling, clip_seconds, read_frames, read_poster
from openvse.search import Page, Query, SearchEngine, find_duplicates
from openvse.search.sheets import contact_sheet
from tests.clips import numbers, write_video
from tests.naming import names, refusal


@dataclass
class ClipColours(ColourModel):
    """Embeds an image, or the middle frame of a part of a clip, by its mean colour."""

    def read_image(self, image: ClipSource) -> Pixels:
        return str(getattr(image, "path", image)), np.asarray(read_poster(image), np.float32).mean((0, 1))


def film(path: Path, *colours: str, seconds: float = 1.0) -> Path:
    """Write a clip of several colours, each for so many seconds."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for colour in colours:
            for _ in range(round(10 * seconds)):
                container.mux(stream.encode(av.VideoFrame.from_image(Image.new("RGB", (32, 32), COLOURS[colour]))))
        container.mux(stream.encode())
    return path


@pytest.fixture
def model() -> ClipColours:
    return ClipColours()


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """A folder with an image, and two clips: of red, green and blue, and of white and red."""
    folder = tmp_path / "photos"
    paint(folder / "green.png", "green")
    film(folder / "a.mp4", "red", "green", "blue")
    film(folder / "deeper" / "b.mp4", "white", "red")
    return folder


def ids(index: Path) -> list[str]:
    return list(Index.open(index, check=True).table.ids)


CUT = ["a.mp4#t=0,1", "a.mp4#t=1,2", "a.mp4#t=2,3", "deeper/b.mp4#t=0,1", "deeper/b.mp4#t=1,2", "green.png"]


def test_segments_have_one_length_but_the_last() -> None:
    assert cut_clip(7.4, 5.0) == [(0, 7.4)] and cut_clip(7.6, 5.0) == [(0, 5), (5, 7.6)]
    assert cut_clip(10.0, 5.0) == [(0, 5), (5, 10)] and cut_clip(0.0, 5.0) == [(0, 0.001)]


def test_a_segment_has_the_frames_of_its_time(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 47, fps=10)
    assert clip_seconds(path) == pytest.approx(4.7)
    every = FrameSampling("run", num_frames=100, fps=10.0)
    assert numbers(read_frames(ClipSegment(path, 1.0, 2.0), every)) == [*range(10, 20)]
    assert numbers(read_frames(ClipSegment(path, 4.0, 4.7), every)) == [*range(40, 47)]
    assert numbers([read_poster(ClipSegment(path, 1.0, 2.0))]) == [15]
    assert numbers(read_frames(ClipSegment(path, 1.04, 1.06), every)) == [10]


@pytest.mark.medium
def test_hits_name_file_and_time(model: ClipColours, clips: Path, tmp_path: Path) -> None:
    report = build_index(model, clips, tmp_path / "index", settings=IndexSettings(segment_seconds=1.0))
    assert (report.count, report.segments) == (6, 5)
    index = Index.open(tmp_path / "index")
    assert ids(tmp_path / "index") == CUT
    engine = SearchEngine(model, index)
    first, second, *_ = engine.search(["red"], top_k=6)[0]
    assert {(hit.path, hit.start, hit.end) for hit in (first, second)} == {
        (clips / "a.mp4", 0, 1),
        (clips / "deeper" / "b.mp4", 1, 2),
    }
    found = engine.answer(Query("green"), Page(where=("path ~ a.mp4",)))[0].hits
    assert found[0].id == "a.mp4#t=1,2" and len(found) == 3
    assert len(engine.answer(Query("green"), Page(where=("kind = clip",)))[0].hits) == 5
    assert engine.search(Query(like="a.mp4#t=1,2"), 1)[0].id == "green.png"
    page = contact_sheet({"red": [first]})
    assert '<span class="span">0:0' in page and "#t=" in page and "data:image" in page


@pytest.mark.medium
def test_one_hit_of_each_file(model: ClipColours, clips: Path, tmp_path: Path) -> None:
    for number in range(4):
        shutil.copy(film(tmp_path / "red.mp4", *["red"] * 6, seconds=0.5), clips / f"more {number}.mp4")
    build_index(model, clips, tmp_path / "index", settings=IndexSettings(segment_seconds=0.5))
    engine = SearchEngine(model, Index.open(tmp_path / "index"))
    hits = engine.answer("red", Page(top_k=6, one_per="file"))[0].hits
    assert len({hit.path for hit in hits}) == 6 and [hit.rank for hit in hits] == [*range(1, 7)]
    rest = engine.answer("red", Page(top_k=3, skip=3, one_per="file"))[0].hits
    assert [hit.id for hit in rest] == [hit.id for hit in hits[3:]]
    assert len(engine.answer("red", Page(top_k=50, one_per="file"))[0].hits) == 7


@pytest.mark.medium
def test_all_segments_follow_their_file(model: ClipColours, clips: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    build_index(model, clips, out, settings=IndexSettings(segment_seconds=1.0))
    model.batches.clear()
    report = build_index(model, clips, out)  # the length is remembered
    assert (report.reused, report.segments, model.batches) == (6, 5, [])
    (clips / "a.mp4").rename(clips / "a copy.mp4")  # its name is between a.mp4 and the names of its segments
    shutil.copy(clips / "a copy.mp4", clips / "deeper" / "c.mp4")
    os.utime(clips / "deeper" / "b.mp4", ns=(1, 1))
    report = build_index(model, clips, out)
    assert (report.recognised, report.removed, model.batches) == (3, 3, [])
    assert ids(out) == [
        *(f"a copy.mp4#t={second},{second + 1}" for second in range(3)),
        *CUT[3:5],
        *(f"deeper/c.mp4#t={second},{second + 1}" for second in range(3)),
        "green.png",
    ]
    film(clips / "a copy.mp4", "white")  # shorter
    build_index(model, clips, out)
    assert ids(out)[:2] == ["a copy.mp4#t=0,1", "deeper/b.mp4#t=0,1"]
    (clips / "deeper" / "c.mp4").write_bytes(b"0" * 100)
    report = build_index(model, clips, out)
    assert [path.name for path, _ in report.failed] == ["c.mp4"]
    (clips / "deeper" / "b.mp4").unlink()
    build_index(model, clips, out)
    assert ids(out) == ["a copy.mp4#t=0,1", "green.png"]


@pytest.mark.medium
def test_another_length_and_whole_clips(model: ClipColours, clips: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    build_index(model, clips, out, settings=IndexSettings(segment_seconds=1.0))
    assert build_index(model, clips, out, settings=IndexSettings(segment_seconds=2.0)).segments == 2 + 1
    model.reads_videos = True
    report = build_index(model, clips, out, settings=IndexSettings(segment_seconds=0.0))
    assert ids(out) == ["a.mp4", "deeper/b.mp4", "green.png"] and report.segments == 0
    model.batches.clear()
    assert build_index(model, clips, out).reused == 3 and not model.batches
    assert build_index(model, clips, out, settings=IndexSettings(segment_seconds=1.0)).segments == 5
    assert ids(out) == CUT
    with pytest.raises(DataError, match=r"segment_seconds.*86400.*0"):
        build_index(model, clips, out, settings=IndexSettings(segment_seconds=-1.0))


@pytest.mark.medium
def test_a_stop_leaves_clips_whole(
    model: ClipColours, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ClipColours.read_image

    def stopped(self, image: ClipSource) -> Pixels:
        if getattr(image, "start", 0) >= 1 and image.path.name == "b.mp4":
            raise KeyboardInterrupt
        return plain(self, image)

    monkeypatch.setattr(ClipColours, "read_image", stopped)
    with pytest.raises(KeyboardInterrupt):
        build_index(model, clips, tmp_path / "index", settings=IndexSettings(segment_seconds=1.0), batch_size=1)
    assert ids(tmp_path / "index") == CUT[:3]
    monkeypatch.setattr(ClipColours, "read_image", plain)
    assert build_index(model, clips, tmp_path / "index").resumed == 3
    assert ids(tmp_path / "index") == CUT


@pytest.mark.medium
def test_segments_are_no_duplicates_and_have_the_metadata_of_their_file(
    model: ClipColours, clips: Path, tmp_path: Path
) -> None:
    (clips / "metadata.jsonl").write_text('{"file_name": "deeper/b.mp4", "camera": "X100"}\n')
    shutil.copy(clips / "deeper" / "b.mp4", clips / "c.mp4")
    build_index(model, clips, tmp_path / "index", settings=IndexSettings(segment_seconds=1.0))
    index = Index.open(tmp_path / "index")
    assert find_duplicates(tmp_path / "index") == ([], [])
    engine = SearchEngine(model, index)
    assert len(engine.answer(Query("red"), Page(where=("camera = X100",)))[0].hits) == 2
    assert names(refusal(DataError, lambda: engine.search(Query(like="deeper/b.mp4"))), "deeper/b.mp4", "0,1")


def test_an_image_model_without_segments_leaves_clips_out(model: ClipColours, clips: Path, tmp_path: Path) -> None:
    report = build_index(model, clips, tmp_path / "index")
    assert (report.count, report.left_out.counts()) == (1, "2 videos")
    refusal(IndexFormatError, forget_folder, tmp_path / "gone", "a")
