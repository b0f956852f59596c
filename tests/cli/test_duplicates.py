"""``openvse duplicates``: groups of images that are the same or nearly so."""

from __future__ import annotations

import json
import os
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from openvse.errors import DataError
from openvse.indexing.database import Entry, Root
from openvse.indexing.manifest import Item
from openvse.indexing.writer import IndexWriter
from openvse.media import near_duplicates
from openvse.media.listing import SPECIAL, list_media
from openvse.media.near_duplicates import SeenImage, duplicate_pairs, look_of
from openvse.search import find_duplicates
from openvse.search.duplicates import _groups
from photographs import xmp_packet
from tests.failures import Failures
from tests.naming import names, refusal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two photos, one of them three times: as it is, smaller, and once more as it is."""
    photos = tmp_path / "photos"
    (photos / "deeper").mkdir(parents=True)
    for seed in (1, 2):
        noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((320, 240), Image.Resampling.BICUBIC).save(photos / f"{seed}.png")
    Image.open(photos / "1.png").resize((160, 120)).save(photos / "small.jpg", quality=90)
    shutil.copy(photos / "1.png", photos / "deeper" / "copy of 1.png")
    (photos / "broken.png").write_bytes(b"x")
    return photos


@pytest.mark.medium
def test_a_folder(folder: Path, invoke, result_of, works, refused, tmp_path: Path) -> None:
    kept, others = (str(folder / "1.png"), [str(folder / "deeper" / "copy of 1.png"), str(folder / "small.jpg")])
    result = works("duplicates", folder)
    assert names(result.stdout, kept, *others, folder, 1, 2) and "broken.png" in result.stderr
    assert invoke("duplicates", folder, "-0").stdout.split("\0") == [*others, ""]
    assert "keep  " + kept + "  (the older file)" in result.stdout
    group = {"keep": kept, "why": "the older file", "others": others, "lost": {}}
    assert result_of("duplicates", folder)["groups"] == [group]
    assert names(refused("duplicates", folder, "--threshold", 0.9), "threshold", "index")
    (tmp_path / "empty").mkdir()
    assert names(refused("duplicates", tmp_path / "empty"), tmp_path / "empty")


def test_the_largest_is_kept_though_it_is_decoded_smaller(folder: Path) -> None:
    Image.open(folder / "1.png").resize((640, 480), Image.Resampling.BICUBIC).save(folder / "large.jpg", quality=90)
    ((kept, *_),), _ = find_duplicates(folder)
    assert kept == folder / "large.jpg"


def test_the_one_with_facts_is_kept_before_a_larger_file(folder: Path) -> None:
    (folder / "deeper" / "copy of 1.png.xmp").write_bytes(xmp_packet('xmp:Rating="4"'))
    Image.open(folder / "1.png").save(folder / "1.png", compress_level=0)
    (group,), _ = find_duplicates(folder)
    assert ([each.name for each in group], group.why) == (["copy of 1.png", "1.png", "small.jpg"], "states rating")


@pytest.mark.medium
def test_what_only_a_worse_copy_states_is_said_and_it_is_not_listed(folder: Path, works, result_of) -> None:
    small, copy = folder / "small.jpg", folder / "deeper" / "copy of 1.png"
    Path(f"{small}.xmp").write_bytes(xmp_packet('xmp:Rating="4"'))
    Path(f"{folder / '1.png'}.xmp").write_bytes(xmp_packet('xmp:Rating="3"'))
    assert f"{small}  (loses rating)\n" in works("duplicates", folder).stdout
    assert result_of("duplicates", folder)["groups"][0]["lost"] == {str(small): {"rating": 4}}
    for way, listed in (("-0",), [copy]), (("-0", "facts-may-go"), [copy, small]):
        assert works("duplicates", folder, *way).stdout.split("\0")[:-1] == [*map(str, listed)]


@pytest.mark.medium
def test_what_cannot_be_used_is_named_five_times_and_then_counted(folder: Path, invoke, monkeypatch) -> None:
    for number in range(15):
        (folder / f"z{number:02}.png").write_bytes((folder / "1.png").read_bytes()[: 40 * number])
    told = invoke("duplicates", folder).stderr.splitlines()
    assert sum("skipped" in line and ".png" in line for line in told) == 5
    assert sum("11 more" in line for line in told) == 1
    named = json.loads(invoke("duplicates", folder, "--json").stdout)["warnings"]
    assert sum(".png" in line for line in named) == 16
    monkeypatch.setenv("OPENVSE_MAX_PIXELS", "1")  # so that it is forgotten after this test
    named = json.loads(invoke("duplicates", folder, "--json", "--max-pixels", 160 * 120).stdout)["warnings"]
    assert any("2.png" in line and "76800" in line for line in named)
    assert not any("small.jpg" in line for line in named)  # a JPEG of four times as many pixels is read


@pytest.mark.medium
def test_an_index(tmp_path: Path) -> None:
    angles = np.array([0.0, 0.01, 1.0, 2.0, 2.005, 2.01])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, None].astype(np.float32)
    entries = [Entry(Item(f"{number}.jpg", number, 10 + number)) for number in range(6)]
    with IndexWriter(tmp_path / "index", model="m", roots=[Root(0, "/photos", "")]) as writer:
        writer.append(entries, vectors)
    for threshold, expected in (
        (0.9999, [["5.jpg", "4.jpg", "3.jpg"], ["1.jpg", "0.jpg"]]),
        (float(np.cos(0.006)), [["5.jpg", "4.jpg"]]),  # 3 and 5 are 0.01 apart, both by 4
    ):
        groups, _ = find_duplicates(tmp_path / "index", threshold)
        assert [[path.name for path in group] for group in groups] == expected
    assert names(refusal(DataError, find_duplicates, tmp_path / "index", 2.0), 2.0)


@pytest.mark.medium
def test_names_of_one_file_are_no_copies(folder: Path, invoke) -> None:
    """What removes the others must leave every picture."""
    for name in ("small.jpg", "broken.png", "deeper/copy of 1.png"):
        (folder / name).unlink()
    (folder / "a.png").symlink_to(folder / "deeper" / "a long name of the picture.png")
    shutil.move(folder / "1.png", folder / "deeper" / "a long name of the picture.png")
    os.link(folder / "2.png", folder / "hard.png")
    result = invoke("duplicates", folder, "-0")
    assert (result.exit_code, result.stdout) == (0, "")
    assert names(result.stderr, 2)
    shutil.copy(folder / "2.png", folder / "deeper" / "copied.png")
    assert invoke("duplicates", folder, "-0").stdout == f"{folder / 'deeper' / 'copied.png'}\0"


@pytest.mark.medium
def test_what_is_no_ordinary_file_is_left_out(folder: Path, invoke) -> None:
    os.mkfifo(folder / "pipe.jpg")
    (folder / "zero.png").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.txt")
    listing = list_media(folder)
    assert listing.left_out.files == {SPECIAL: [folder / "pipe.jpg", folder / "zero.png"]}
    assert "pipe.jpg" not in listing.names and "zero.png" not in listing.names
    result = invoke("duplicates", folder)
    assert result.exit_code == 0 and "pipe.jpg" in result.stderr
    lines = [{"file_name": name, "text": "words"} for name in ("1.png", "2.png", "pipe.jpg")]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert "pipe.jpg" in invoke("data", "check", folder, "-q").output


@pytest.mark.medium
@pytest.mark.parametrize(("original", "beside"), [("IMG_1.dng", "IMG_1.jpg"), ("IMG_1.heic", "img_1.JPG")])
def test_files_of_one_shot_are_no_copies(tmp_path: Path, original: str, beside: str, monkeypatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((320, 240), Image.Resampling.BICUBIC)
    monkeypatch.setattr("openvse.media.formats.is_installed", lambda package: True)
    small = image.resize((160, 120))
    monkeypatch.setattr(
        "openvse.media.near_duplicates.read_image",
        lambda content, shorter_side: small if content == b"its original" else Image.open(BytesIO(content)),
    )
    (tmp_path / original).write_bytes(b"its original")
    image.save(tmp_path / beside, "JPEG")
    assert find_duplicates(tmp_path) == ([], [])
    (tmp_path / "finished").mkdir()
    shutil.move(tmp_path / beside, tmp_path / "finished" / beside)  # many keep them in two folders
    assert find_duplicates(tmp_path) == ([], [])
    image.save(tmp_path / "another.png")
    groups, _ = find_duplicates(tmp_path)
    listed = {path.name for group in groups for path in group[1:]}
    assert original not in listed or original.endswith("heic")
    assert len(listed) >= 1  # the copy, or what it is a copy of
    shutil.copy(tmp_path / original, tmp_path / f"other{Path(original).suffix}")
    listed = {path.name for group in find_duplicates(tmp_path)[0] for path in group[1:]}
    assert not any(name.endswith(".dng") for name in listed)


@pytest.mark.medium
def test_a_burst_hides_no_other_pair(monkeypatch) -> None:
    """All frames of a burst are in one group, and few of their pairs are compared by pixels."""
    compared: list[int] = []
    agree = near_duplicates._agree
    monkeypatch.setattr(near_duplicates, "_agree", lambda *pair: (compared.append(1), agree(*pair))[1])
    looks = [look_of(drawn(0))] * 500 + [look_of(drawn(1))] * 2
    seen = [SeenImage(look, str(number).encode()) for number, look in enumerate(looks)]
    gone: set[int] = set()
    _, alike = duplicate_pairs(seen, lambda one, other: not gone & {one, other})
    groups = _groups(alike, gone)
    assert {first: len(others) for first, others in groups.items()} == {0: 499, 500: 1}
    assert len(compared) <= 1000


def drawn(seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((64, 48), Image.Resampling.BICUBIC)


def several(kind: str, *seeds: int, **options: object) -> bytes:
    """Return a file of pages or frames."""
    (first, *others), file = [drawn(seed).resize((96, 72)) for seed in seeds], BytesIO()
    first.save(file, kind, save_all=bool(others), append_images=others, **options)
    return file.getvalue()


PREVIEW = BytesIO()
drawn(0).save(PREVIEW, "MPO", save_all=True, append_images=[drawn(0).resize((16, 12))])
CLIP = b"\0\0\0\x18ftypmp42" + bytes(12)
PAGES = [
    (several("TIFF", 0, 1, 2), several("TIFF", 0, 3, 4), False),
    (several("TIFF", 0, 1, 2), several("TIFF", 0, 1), False),
    (several("TIFF", 0, 1, 2), several("TIFF", 0, 1, 2, compression="jpeg"), True),
    (several("GIF", 0, 1, 2), several("GIF", 0, 3, 4), False),
    (several("PNG", 0, 1, 2), several("WEBP", 0, 1, 2), True),
    (several("PNG", 0), several("WEBP", 0, 1, 2), False),
    (several("PNG", 0), several("WEBP", 0), True),
    (several("JPEG", 0), several("JPEG", 0, quality=90) + CLIP, False),
    (several("JPEG", 0) + CLIP, several("JPEG", 0) + CLIP, True),
    (several("PNG", 0), PREVIEW.getvalue(), True),
    (several("TIFF", 0, 1, 2, 3), several("TIFF", 0, 1, 2, 3, compression="tiff_lzw"), False),
    (several("TIFF", 0, 1, 2, 3), several("TIFF", 0, 1, 2, 3), True),
]


@pytest.mark.medium
def test_files_of_several_pages_are_copies_only_if_all_pages_are(tmp_path: Path, monkeypatch) -> None:
    """An index, whose first pages have one embedding, says the same as a folder."""
    monkeypatch.setattr(near_duplicates, "_MOST_PAGES", 3)
    failures = Failures()
    for number, (one, other, are_copies) in enumerate(PAGES):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in (("one.png", one), ("other.png", other)):
            (folder / name).write_bytes(content)
        entries = [Entry(Item(name, 0, 1)) for name in ("one.png", "other.png")]
        with IndexWriter(folder / "index", model="m", roots=[Root(0, str(folder), "")]) as writer:
            writer.append(entries, np.ones((2, 1, 2), np.float32))
        for place in (folder, folder / "index"):
            with failures.of(number, place.name):
                assert len(find_duplicates(place)[0]) == are_copies
    assert not failures, failures
