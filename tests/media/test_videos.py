"""A few frames of a clip: the right ones, upright, from every container; what is wrong with a file is said."""

import builtins
import struct
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from clips import SIZE, grey, number_of, numbers, write_animation, write_video
from openvse.errors import BadImageError, BadVideoError, OpenVSEError
from openvse.media.images import read_image
from openvse.media.listing import list_media
from openvse.media.segments import ClipSegment
from openvse.media.videos import (
    FrameSampling,
    clip_seconds,
    evenly_spread,
    frame_starts,
    frames_of,
    is_video,
    opened_starts,
    read_frames,
    read_poster,
)
from tests.naming import names, refusal

EVERY = FrameSampling("run", num_frames=10_000, fps=1000.0)


def slow_run(starts: list[float], end: float, fps: float) -> list[int]:
    """What is on the screen at every instant, instant by instant."""
    seen: list[int] = []
    instant = 0
    while instant == 0 or starts[0] + instant / fps < end - 1e-6:
        shown = [n for n, start in enumerate(starts) if start <= starts[0] + instant / fps + 1e-6][-1]
        if shown not in seen:
            seen.append(shown)
        instant += 1
    return seen


@pytest.mark.medium
@given(
    gaps=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    fps=st.sampled_from([2.0, 8.0, 12.5]),
    most=st.integers(1, 9),
    place=st.floats(0, 1, exclude_max=True),
)
def test_run_takes_consecutive_frames_of_those_seen(gaps: list[int], fps: float, most: int, place: float) -> None:
    starts = np.cumsum([0, *gaps])[:-1] / 100
    end = sum(gaps) / 100
    seen = slow_run(starts.tolist(), end, fps)
    sampling = FrameSampling("run", most, fps)
    chosen = sampling.choose(starts, end, place).tolist()
    first = seen.index(chosen[0])
    assert chosen == seen[first : first + min(most, len(seen))]
    spread = sampling.choose(starts, end).tolist()
    assert len(spread) == min(most, len(seen)) and set(spread) <= set(seen)


def test_every_run_is_drawn_and_the_last_place_fits() -> None:
    starts = np.arange(10) / 8
    sampling = FrameSampling("run", 8, 8.0)
    drawn = {tuple(sampling.choose(starts, 1.25, place).tolist()) for place in np.linspace(0, 1, 50)[:-1]}
    assert drawn == {tuple(range(first, first + 8)) for first in range(3)}
    assert sampling.choose(starts, 1.25, 0.999999).tolist() == list(range(2, 10))


def test_evenly_spread_frames_are_the_middles_of_equal_parts() -> None:
    assert evenly_spread(16, 8).tolist() == [1, 3, 5, 7, 9, 11, 13, 15]
    assert evenly_spread(9, 3).tolist() == [1, 4, 7]
    assert evenly_spread(8, 8).tolist() == list(range(8))
    even = FrameSampling("even", num_frames=4)
    starts = np.arange(100) / 25
    assert even.choose(starts, 4.0).tolist() == [12, 37, 62, 87]
    assert even.choose(starts, 4.0, 0.7).tolist() == even.choose(starts, 4.0).tolist()
    assert even.choose(np.array([0.0, 3.9]), 4.0).tolist() == [0], "a frame is taken once"


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_animations(tmp_path: Path, suffix: str) -> None:
    path = write_animation(tmp_path / f"a.{suffix}", 30, 50)
    assert numbers(read_frames(path, EVERY)) == list(range(30))
    seen = [int(n / 8 / 0.05 + 1e-9) for n in range(12)]
    assert numbers(read_frames(path, place=0.0)) == seen[:8]
    assert numbers(read_frames(path)) == [seen[n] for n in evenly_spread(12, 8)]
    assert numbers(read_frames(path.read_bytes(), FrameSampling("even", 3))) == [5, 15, 25]
    with Image.open(path) as image:
        assert numbers(read_frames(image, FrameSampling("even", 3))) == [5, 15, 25]
        assert image.n_frames == 30, "the caller's picture was closed"
    assert {frame.mode for frame in read_frames(path)} == {"RGB"}


def test_slow_animations_repeat_no_frame(tmp_path: Path) -> None:
    path = write_animation(tmp_path / "a.gif", 3, [1000, 2000, 500])
    assert numbers(read_frames(path)) == [0, 1, 2]


def test_pictures_are_clips_of_one_frame(tmp_path: Path) -> None:
    grey(7).save(tmp_path / "one.gif")
    grey(7).save(tmp_path / "photo.png")
    for source in (tmp_path / "one.gif", tmp_path / "photo.png", grey(7), np.asarray(grey(7))):
        assert numbers(read_frames(source)) == [7]


def test_arrays_of_frames_stand_at_the_rate_asked_for() -> None:
    array = np.stack([np.asarray(grey(n)) for n in range(20)])
    assert numbers(read_frames(array, place=0.5)) == list(range(6, 14))
    refusal(BadVideoError, read_frames, array[:0])
    refusal(BadVideoError, lambda: read_frames(array.astype(np.float32)))


VIDEOS = [("a.mp4", "libx264"), ("a.webm", "libvpx-vp9"), ("a.avi", "mpeg4"), ("a.mkv", "libx264")]


@pytest.mark.medium
@pytest.mark.parametrize(("name", "codec"), VIDEOS)
def test_videos(tmp_path: Path, name: str, codec: str) -> None:
    pytest.importorskip("av")
    path = write_video(tmp_path / name, 40, codec=codec)
    assert numbers(read_frames(path, EVERY)) == list(range(40))
    assert numbers(read_frames(path, FrameSampling("even", 4))) == [5, 15, 25, 35]
    seen = [int(n * 25 / 8 + 1e-6) for n in range(13)]
    assert numbers(read_frames(str(path), place=0.999)) == seen[-8:]
    assert numbers(read_frames(path.read_bytes(), place=0.0)) == seen[:8]
    assert read_frames(path)[0].size == SIZE


@pytest.mark.medium
def test_jumps_to_key_frames_change_nothing(tmp_path: Path) -> None:
    pytest.importorskip("av")
    for keys_every in (1, 5, 250):
        path = write_video(tmp_path / f"{keys_every}.mp4", 45, keys_every=keys_every)
        for count in (1, 3, 11, 44):
            sampling = FrameSampling("even", count)
            expected = sampling.choose(np.arange(45) / 25, 45 / 25).tolist()
            assert numbers(read_frames(path, sampling)) == expected


def write_noise(path: Path, codec: str, count: int, size: tuple[int, int], keys_every: int = 10) -> list[Image.Image]:
    """Write a video of which no two frames are alike, and return them as they are decoded one after the other."""
    av, draw = pytest.importorskip("av"), np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        (stream.width, stream.height), stream.pix_fmt, stream.bit_rate = size, "yuv420p", 1_000_000
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = keys_every, 2
        for number in range(count):
            grey_noise = draw.integers(0, 30 + 2 * number, (size[1] // 8, size[0] // 8)).astype(np.uint8)
            frame = Image.fromarray(grey_noise).resize(size).convert("RGB")
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
    with av.open(str(path)) as container:
        return [frame.to_image() for frame in container.decode(container.streams.video[0])]


SOUGHT = [
    (f"a.{kind}", codec, (64, 48)) for kind in ("mp4", "mkv", "ts", "mts", "mpg") for codec in ("libx264", "mpeg2video")
]
SOUGHT += [("a.avi", "libx264", (64, 48)), ("a.avi", "mpeg4", (64, 48)), ("a.vob", "mpeg4", (64, 48))]
"""H.264 in a small .mpg has frames without a time, and in .avi with those of decoding; the .vob has a time twice."""


@pytest.mark.medium
@pytest.mark.parametrize(("name", "codec", "size"), [*SOUGHT, ("a.mpg", "mpeg2video", (320, 240))])
def test_a_jump_finds_the_frames_of_sequential_decoding(
    tmp_path: Path, name: str, codec: str, size: tuple[int, int]
) -> None:
    path = tmp_path / name
    frames = [frame.tobytes() for frame in write_noise(path, codec, 60, size)]
    assert len({*frames}) == len(frames) == 60

    def places(source: Path | ClipSegment, sampling: FrameSampling) -> list[int]:
        return [frames.index(frame.tobytes()) for frame in read_frames(source, sampling)]

    assert clip_seconds(path) == pytest.approx(60 / 25, abs=0.002)
    assert places(path, EVERY) == list(range(60))
    for count in (1, 4, 20):
        chosen = FrameSampling("even", count)
        assert places(path, chosen) == chosen.choose(np.arange(60) / 25, 60 / 25).tolist()
    for first in (0, 15, 30, 45):
        assert places(ClipSegment(path, first / 25, (first + 15) / 25), EVERY) == list(range(first, first + 15))
    assert frames.index(read_poster(path).tobytes()) == 30


@pytest.mark.medium
@pytest.mark.parametrize("suffix", ["ts", "mpg"])
def test_a_video_with_a_single_key_frame_has_a_poster(tmp_path: Path, suffix: str) -> None:
    frames = write_noise(tmp_path / f"a.{suffix}", "libx264", 20, (64, 48), keys_every=250)
    assert read_poster(tmp_path / f"a.{suffix}").tobytes() == frames[10].tobytes()


@pytest.mark.medium
def test_a_jump_spares_the_frames_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three frames in a video of many key frames, few others are decoded."""
    av = pytest.importorskip("av")
    path = write_video(tmp_path / "a.mp4", 45, keys_every=5)
    read = []
    real = av.container.InputContainer.demux

    class Watched:
        def __init__(self, container) -> None:
            self._container = container

        def __getattr__(self, name: str):
            return getattr(self._container, name)

        def __enter__(self):
            return self

        def __exit__(self, *_) -> None:
            self._container.close()

        def demux(self, stream):
            for packet in real(self._container, stream):
                read.append(packet.size)
                yield packet

    opened = av.open
    monkeypatch.setattr(av, "open", lambda *args, **options: Watched(opened(*args, **options)))
    assert numbers(read_frames(path, FrameSampling("even", 3))) == [7, 22, 37]
    assert 3 <= len(list(filter(None, read))) - 45 <= 18, "all were read once for their times"


def test_frames_at_uneven_times(tmp_path: Path) -> None:
    pytest.importorskip("av")
    path = write_video(tmp_path / "a.mp4", 4, fps=100, times=[0, 10, 110, 120])
    assert numbers(read_frames(path, FrameSampling("run", 8, 8.0))) == [0, 1, 2]
    assert numbers(read_frames(path, EVERY)) == [0, 1, 2, 3]


def test_what_an_editor_cut_off_is_not_seen(tmp_path: Path) -> None:
    """An edited mp4 still holds the frames before its first one, as others may depend on them."""
    pytest.importorskip("av")
    path = write_video(tmp_path / "a.mp4", 30, times=range(-10, 20))
    assert numbers(read_frames(path, EVERY)) == list(range(10, 30))
    assert numbers(read_frames(path, FrameSampling("even", 2))) == [15, 25]


def test_the_poster_is_from_the_middle(tmp_path: Path) -> None:
    assert number_of(read_poster(write_animation(tmp_path / "a.gif", 9))) == 4
    grey(5).save(tmp_path / "a.png")
    assert number_of(read_poster(tmp_path / "a.png")) == 5


def broken(folder: Path) -> list[Path]:
    """Write files that are no clips, and name one that is not there."""
    import av

    half = []
    for name, front in (("front.mp4", True), ("back.mp4", False), ("a.webm", False), ("a.gif", False)):
        whole = folder / f"whole_{name}"
        if name.endswith("gif"):
            write_animation(whole, 20)
        else:
            write_video(whole, 60, codec="libvpx-vp9" if name.endswith("webm") else "libx264", front=front)
        content = whole.read_bytes()
        half.append(folder / name)
        half[-1].write_bytes(content[: int(0.6 * len(content))])
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "words.mp4").write_bytes(b"not a video " * 100)
    (folder / "folder.mp4").mkdir()
    with av.open(str(folder / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 44100
        container.mux([*stream.encode(frame), *stream.encode()])
    with av.open(str(folder / "nothing.mkv"), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        container.start_encoding()
    others = ("empty.mp4", "words.mp4", "folder.mp4", "gone.mp4", "sound.mp4", "nothing.mkv")
    return [*half, *(folder / name for name in others)]


@pytest.mark.medium
def test_what_is_wrong_with_a_file_is_said_in_a_line(tmp_path: Path) -> None:
    pytest.importorskip("av")
    for path in broken(tmp_path):
        caught = refusal(BadVideoError, read_frames, path)
        said = caught
        assert said.startswith(f"{path}: ") and "\n" not in said, said


def test_large_frames_are_refused_before_they_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENVSE_MAX_PIXELS", "1000")
    pytest.importorskip("av")
    for path in (write_animation(tmp_path / "a.gif", 3), write_video(tmp_path / "a.mp4", 3)):
        assert names(refusal(BadVideoError, read_frames, path), "48", "32", "1,000 ")


def test_an_animation_of_too_many_large_frames_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each frame of 20 bytes takes as long as the whole image."""
    monkeypatch.setenv("OPENVSE_MAX_PIXELS", "160000")
    head = b"GIF89a" + struct.pack("<HHBBB", 400, 400, 0x80, 0, 0) + bytes(6)
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\0"
    content = head + frame * 60 + b";"
    assert len(read_frames(content, FrameSampling("even", 2))) == 2
    with pytest.raises(BadVideoError, match="60.*400 x 400"):
        read_frames(content, FrameSampling("run", 1000, 1000.0))


def test_a_playlist_opens_no_other_file(tmp_path: Path) -> None:
    """FFmpeg would follow a list of files to wherever it leads."""
    pytest.importorskip("av")
    write_video(tmp_path / "secret.ts", 10)
    (tmp_path / "list.mp4").write_text("#EXTM3U\n#EXTINF:1,\nsecret.ts\n#EXT-X-ENDLIST\n")
    (tmp_path / "script.mp4").write_text("ffconcat version 1.0\nfile secret.ts\n")
    for name in ("list.mp4", "script.mp4"):
        refusal(BadVideoError, read_frames, tmp_path / name)


def test_videos_without_pyav_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest):
        if name == "av":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "av", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    (tmp_path / "a.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(100))
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    with pytest.raises(OpenVSEError, match=r"pip install") as caught:
        read_frames(tmp_path / "a.mp4")
    assert not isinstance(caught.value, BadImageError), "one missing package is not many bad files"
    assert names(refusal(BadVideoError, read_frames, tmp_path / "a.jpg"), "a.jpg", "PyAV")
    assert numbers(read_frames(write_animation(tmp_path / "a.gif", 3), EVERY)) == [0, 1, 2], "GIF needs no PyAV"


def test_clips_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("b.MP4", "sub/a.webm", "a.gif", "notes.txt", ".hidden/a.mp4", "._b.mp4"):
        (tmp_path / name).write_bytes(b"x")
    assert list_media(tmp_path, videos=True).paths == [tmp_path / name for name in ("a.gif", "b.MP4", "sub/a.webm")]
    assert is_video("x/a.mov") and not is_video("a.gif") and not is_video("mp4")


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_frames_appear_when_the_file_says(tmp_path: Path, suffix: str) -> None:
    path = write_animation(tmp_path / f"a.{suffix}", 4, [100, 40, 200, 60])
    starts, end = frame_starts(path.read_bytes())
    np.testing.assert_allclose(starts, [0.0, 0.1, 0.14, 0.34])
    assert end == pytest.approx(0.4)
    with Image.open(path) as image:
        again, last = opened_starts(image)
    np.testing.assert_allclose(again, starts)
    assert last == pytest.approx(end)


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_a_still_picture_is_one_frame_of_a_tenth_of_a_second(tmp_path: Path, suffix: str) -> None:
    grey(3).save(tmp_path / f"a.{suffix}")
    starts, end = frame_starts((tmp_path / f"a.{suffix}").read_bytes())
    assert starts.tolist() == [0.0] and end == pytest.approx(0.1)


def test_hasty_frames_stay_as_long_as_browsers_show_them(tmp_path: Path) -> None:
    starts, end = frame_starts(write_animation(tmp_path / "a.gif", 3, [10, 20, 0]).read_bytes())
    np.testing.assert_allclose(starts, [0.0, 0.1, 0.12])
    assert end == pytest.approx(0.22)


def test_a_gif_without_its_trailer_is_whole(tmp_path: Path) -> None:
    content = write_animation(tmp_path / "a.gif", 3).read_bytes()
    assert content[-1] == 0x3B
    assert len(frame_starts(content[:-1])[0]) == 3


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_a_file_that_ends_within_a_block_is_truncated(tmp_path: Path, suffix: str) -> None:
    content = write_animation(tmp_path / f"a.{suffix}", 5).read_bytes()
    refusal(BadVideoError, frame_starts, content[:-20])


def test_a_gif_of_other_bytes_is_damaged_and_one_without_pictures_has_no_frames(tmp_path: Path) -> None:
    header = b"GIF89a" + bytes([8, 0, 8, 0, 0, 0, 0])
    assert names(refusal(BadVideoError, lambda: frame_starts(header + b"\x99\x99")), "GIF", "13")
    refusal(BadVideoError, lambda: frame_starts(header + b";"))
    refusal(BadVideoError, frame_starts, b"GIF89a")


def test_frames_are_decoded_one_by_one(monkeypatch):
    decoded = Mock(side_effect=read_image)
    monkeypatch.setattr("openvse.media.videos.read_image", decoded)
    frames = frames_of(np.zeros((5, 8, 8, 3), np.uint8), FrameSampling("even", num_frames=4))
    for count in range(1, 5):
        next(frames)
        assert decoded.call_count == count
    assert next(frames, None) is None
