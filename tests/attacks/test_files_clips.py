"""Clips of strangers: a header that claims more than the file holds is refused before anything is made of it."""

from __future__ import annotations

import resource
import struct

import pytest

from openvse.errors import BadVideoError
from openvse.media.videos import clip_seconds, read_poster
from photographs import read_header
from tests.naming import names, refusal

pytest.importorskip("av")


def _box(kind: bytes, *content: bytes) -> bytes:
    whole = b"".join(content)
    return struct.pack(">I", 8 + len(whole)) + kind + whole


def _full(kind: bytes, *content: bytes) -> bytes:
    return _box(kind, b"\0" * 4, *content)


def mp4(samples: int, size: int, tracks: int = 1) -> bytes:
    """Return an MP4 whose tables claim samples of one size, in a few hundred bytes."""
    entry = _box(b"mp4v", b"\0" * 6 + b"\0\1" + b"\0" * 16, struct.pack(">HH", 64, 64), b"\0" * 46)
    tables = (
        _full(b"stsd", struct.pack(">I", 1), entry),
        _full(b"stts", struct.pack(">3I", 1, samples, 1)),
        _full(b"stsc", struct.pack(">4I", 1, 1, samples, 1)),
        _full(b"stsz", struct.pack(">2I", size, samples)),
        _full(b"stco", struct.pack(">2I", 1, 40)),
    )
    minf = _box(b"minf", _full(b"vmhd", b"\0" * 8), _box(b"stbl", *tables))
    handler = _full(b"hdlr", b"\0" * 4 + b"vide" + b"\0" * 14)
    media = _box(b"mdia", _full(b"mdhd", struct.pack(">4IHH", 0, 0, 1000, 1000, 0, 0)), handler, minf)
    track = _box(b"trak", _full(b"tkhd", b"\0" * 80), media)
    head = _full(b"mvhd", struct.pack(">4I", 0, 0, 1000, 1000) + b"\0" * 80)
    return _box(b"ftyp", b"isom\0\0\0\0isom") + _box(b"mdat", b"\0" * 64) + _box(b"moov", head, *[track] * tracks)


@pytest.mark.parametrize("tracks", [1, 40])
def test_samples_that_are_only_claimed_take_no_memory(tracks, tmp_path):
    (tmp_path / "a.mp4").write_bytes(mp4(50_000_000, 1, tracks))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for source in (tmp_path / "a.mp4", (tmp_path / "a.mp4").read_bytes()):
        assert names(refusal(BadVideoError, read_poster, source), "samples")
    refusal(BadVideoError, clip_seconds, tmp_path / "a.mp4")
    assert read_header(tmp_path / "a.mp4") == {}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize(
    "content", [b"\0\0\0\1ftyp" + b"\xff" * 8, b"\0\0\0\0moov", b"\0\0\0\1moov" + b"\0" * 8 + b"\0" * 99]
)
def test_boxes_of_odd_sizes_end(content, tmp_path):
    (tmp_path / "a.mp4").write_bytes(content)
    refusal(BadVideoError, read_poster, tmp_path / "a.mp4")
