"""When frames appear, against what Pillow wrote and by hand-made files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clips import grey, write_animation
from openvse.errors import BadVideoError
from openvse.media.videos import frame_starts, opened_starts


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
    with pytest.raises(BadVideoError, match="truncated"):
        frame_starts(content[:-20])


def test_a_gif_of_other_bytes_is_damaged_and_one_without_pictures_has_no_frames(tmp_path: Path) -> None:
    header = b"GIF89a" + bytes([8, 0, 8, 0, 0, 0, 0])
    with pytest.raises(BadVideoError, match="no GIF block begins at byte 13"):
        frame_starts(header + b"\x99\x99")
    with pytest.raises(BadVideoError, match="it has no frames"):
        frame_starts(header + b";")
    with pytest.raises(BadVideoError, match="truncated"):
        frame_starts(b"GIF89a")
