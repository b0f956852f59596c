"""WebDataset shards: read in place, without unpacking anything."""

from __future__ import annotations

import io
import json
import pickle
import tarfile

import numpy as np
import pytest
from drawn import COLOURS, drawn
from PIL import ImageColor

from openvse.datasets import open_corpus
from openvse.errors import BadImageError, DataError
from openvse.media.images import read_image
from tests.naming import names, refusal


def shard(path, members: dict[str, bytes | str], mode: str = "w"):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_images_are_read_from_their_places(tmp_path):
    inside = {"a.png": drawn(0), "a.txt": "a dog\nit runs\n", "b.txt": "a cat", "b.jpg": drawn(1, "JPEG")}
    shard(tmp_path / "train-0.tar", inside)
    shard(tmp_path / "val-0.tar", {"x/a.json": json.dumps({"caption": "a bird"}), "x/a.png": drawn(2)})
    corpus = open_corpus(tmp_path)
    assert corpus.image_ids == ("train-0/a.png", "train-0/b.jpg", "val-0/x/a.png")
    assert corpus.captions == ("a dog", "it runs", "a cat", "a bird")
    assert corpus.splits == ("train", "train", "validation")
    for number, image in enumerate(corpus.image_paths):
        again = pickle.loads(pickle.dumps(image))
        assert len(pickle.dumps(image)) < 1000
        pixel = read_image(again).getpixel((8, 6))
        np.testing.assert_allclose(pixel, ImageColor.getrgb(COLOURS[number]), atol=4)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_text_goes_before_json_and_json_may_state_a_split(tmp_path):
    entry = json.dumps({"captions": ["from json"], "split": "val", "width": 3})
    path = shard(tmp_path / "s.tar", {"a.png": drawn(0), "a.txt": "from text", "a.json": entry})
    corpus = open_corpus(path)
    assert (corpus.captions, corpus.splits) == (("from text",), ("validation",))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"caption": 5}', ["'caption'", 5]),
        ('{"caption": "x", "split": "trian"}', ["'split'", "'trian'"]),
        ("[1]", []),
        ("{", []),
    ],
)
def test_a_type_that_is_refused_names_shard_member_and_key(tmp_path, content, named):
    path = shard(tmp_path / "s.tar", {"a.png": drawn(0), "a.json": content})
    assert names(refusal(DataError, open_corpus, path), "s.tar", "a.json", *named)


def test_a_huge_text_is_refused_before_it_is_read(tmp_path):
    path = shard(tmp_path / "s.tar", {"a.png": drawn(0), "a.txt": b"x" * (1 << 20) + b"y"})
    assert names(refusal(DataError, open_corpus, path), "a.txt", "1,048,577")


def test_links_and_hidden_members_are_passed_over(tmp_path):
    path = shard(tmp_path / "s.tar", {"a.png": drawn(0), "a.txt": "x", "._a.png": b"mac"})
    with tarfile.open(path, "a") as archive:
        for name, kind in (("b.png", tarfile.SYMTYPE), ("c.png", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    assert open_corpus(path).image_ids == ("s/a.png",)


def test_what_is_left_out_is_counted(tmp_path):
    path = shard(tmp_path / "s.tar", {"a.png": drawn(0), "a.txt": "x", "b.svg": "<svg/>", "b.txt": "y"})
    assert "1 SVG" in open_corpus(path).problems[0]


def test_a_truncated_shard_keeps_what_is_whole(tmp_path):
    path = shard(tmp_path / "s.tar", {"a.png": drawn(0), "a.txt": "x", "b.txt": "y", "b.png": b"z" * 50_000})
    path.write_bytes(path.read_bytes()[:8000])
    corpus = open_corpus(path)
    assert corpus.image_ids == ("s/a.png",)
    assert any(names(problem, 1) for problem in corpus.problems)


def test_a_shard_that_shrinks_later_is_a_bad_image(tmp_path):
    path = shard(tmp_path / "s.tar", {"a.png": drawn(0), "a.txt": "x"})
    (image,) = open_corpus(path).image_paths
    path.write_bytes(path.read_bytes()[:520])
    assert names(refusal(BadImageError, read_image, image), "s.tar", "a.png")


def test_compressed_and_foreign_archives(tmp_path):
    packed = shard(tmp_path / "s.tar.gz", {"a.png": drawn(0), "a.txt": "x"}, "w:gz")
    assert names(refusal(DataError, open_corpus, tmp_path), "s.tar.gz")
    packed.rename(tmp_path / "s.tar")
    assert names(refusal(DataError, open_corpus, tmp_path), "s.tar")


def test_no_shard(tmp_path):
    assert names(refusal(DataError, open_corpus, f"webdataset:{tmp_path}"), tmp_path)


def members(path, *contents: tuple[str, bytes]):
    """Write members in this order; names may occur twice."""
    with tarfile.open(path, "w") as archive:
        for name, content in contents:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def items(path) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return the colour and the captions of each image."""
    corpus = open_corpus(path)
    pixels = [read_image(image).getpixel((8, 6)) for image in corpus.image_paths]
    colours = [
        COLOURS.index(min(COLOURS, key=lambda c: np.abs(np.subtract(ImageColor.getrgb(c), p)).sum())) for p in pixels
    ]
    return {
        name: (colour, corpus.select(np.array([number])).captions)
        for number, (name, colour) in enumerate(zip(corpus.image_ids, colours, strict=True))
    }


def test_a_field_begins_at_the_first_dot(tmp_path):
    """As in webdataset, car.1.png is the field "1.png" of "car", and neither its image nor another item."""
    written = (("car.1.png", drawn(1)), ("car.1.txt", b"one"), ("car.PNG", drawn(0)), ("car.txt", b"zero"))
    path = members(tmp_path / "s.tar", *written)
    assert items(path) == {"s/car.PNG": (0, ("zero",))}
    (problem,) = open_corpus(path).problems
    assert problem.cases == (f"{path}: car.1.png", f"{path}: car.1.txt")


P0, P1, T0, T1 = ("a.png", drawn(0)), ("a.png", drawn(1)), ("a.txt", b"zero"), ("a.txt", b"one")


@pytest.mark.parametrize(
    ("order", "kept"),
    [
        ((P0, T0, P1, T1), (1, ("one",))),
        ((P0, P1, T0, T1), None),  # what belongs together cannot be told
        ((P0, P1, T1), None),
        ((P0, T0, T1), (0, ("zero",))),
        ((P0, T0, P1), (0, ("zero",))),
        ((T0, P0, T1, P1), (1, ("one",))),
        ((P0, T0, P0, T1), (0, ("zero", "one"))),  # the same image with a caption in each copy
    ],
)
def test_image_and_caption_of_a_repeated_key_are_of_one_copy(tmp_path, order, kept):
    path = members(tmp_path / "s.tar", *order, ("b.png", drawn(2)), ("b.txt", b"two"))
    found = items(path)
    assert found.pop("s/b.png") == (2, ("two",))
    assert found == ({} if kept is None else {"s/a.png": kept})
    problems = [problem for problem in open_corpus(path).problems if problem.startswith("repeated: 1 key(s)")]
    assert len(problems) == (kept is None or len(kept[1]) == 1)
    assert all(problem.fault for problem in problems)


def test_two_images_of_an_item(tmp_path):
    path = members(tmp_path / "s.tar", ("a.jpg", drawn(0)), ("a.png", drawn(1)), ("a.txt", b"zero"))
    assert items(path) == {"s/a.jpg": (0, ("zero",))}
    assert open_corpus(path).problems[0].cases == (f"{path}: a.png",)
