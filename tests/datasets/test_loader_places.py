"""A loader and the facts of its data set know the same places: what the check finds opens, wherever it lies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from openvse.corpus import Piece
from openvse.datasets import open_corpus
from openvse.datasets.check import check_data
from openvse.errors import DataError
from tests.facts import FACTS
from tests.failures import Failures
from tests.naming import names, refusal
from tests.papers.datasets.test_clip_sets import TUMBLR
from tests.papers.datasets.test_vqa2 import ANNOTATIONS, QUESTIONS, annotation, question

Files = dict[str, list[str]]
"""The media files of a small copy, by the piece that they belong to."""


def flickr(name: str) -> Callable[[Path], Files]:
    def write(root: Path) -> Files:
        images = [{"filename": "a.jpg", "split": "test", "sentences": [{"raw": "a dog"}]}]
        (root / f"dataset_{name}.json").write_text(json.dumps({"images": images}))
        return {"image files": ["a.jpg"]}

    return write


def coco(root: Path) -> Files:
    names = {part: f"COCO_{part}_000000000009.jpg" for part in ("train2014", "val2014")}
    images = [
        {"filename": name, "filepath": part, "split": "train", "sentences": [{"raw": "a dog"}]}
        for part, name in names.items()
    ]
    (root / "dataset_coco.json").write_text(json.dumps({"images": images}))
    return {f"image files of {part}": [name] for part, name in names.items()}


def vqa2(root: Path) -> Files:
    for number, part in enumerate(("train2014", "val2014", "test2015")):
        asked = json.dumps({"questions": [question(number, 9, "who?")]})
        answered = json.dumps({"annotations": [annotation(number, 9, ["me"] * 10)]})
        (root / QUESTIONS.format(part)).write_text(asked)
        if part != "test2015":
            (root / ANNOTATIONS.format(part)).write_text(answered)
    parts = ("train2014", "val2014", "test2015")
    return {f"image files of {part}": [f"COCO_{part}_000000000009.jpg"] for part in parts}


def daquar(root: Path) -> Files:
    for split, name in (("train", "image1"), ("test", "image2")):
        (root / f"qa.894.raw.{split}.txt").write_text(f"what is it in the {name} ?\ndoor\n")
    return {"image files": ["image1.png", "image2.png"]}


def msr_vtt(root: Path) -> Files:
    tree = {
        "videos": [{"video_id": f"video{n}", "split": "train"} for n in range(2)],
        "sentences": [{"video_id": f"video{n}", "caption": "a dog", "sen_id": n} for n in range(2)],
    }
    (root / "MSRVTT_data.json").write_text(json.dumps(tree))
    return {"clips": ["video0.mp4", "video1.mp4"]}


def msr_vtt_1k_a(root: Path) -> Files:
    (root / "MSRVTT_JSFUSION_test.csv").write_text("video_id,sentence\nvideo1,a dog\n")
    return msr_vtt(root)


def vatex(root: Path) -> Files:
    for clip, part in (("a", "training"), ("b", "validation")):
        (root / f"vatex_{part}_v1.0.json").write_text(json.dumps([{"videoID": clip, "enCap": ["a dog"]}]))
    return {"clips": ["a.mp4", "b.mp4"]}


def tgif(root: Path) -> Files:
    (root / "tgif-v1.0.tsv").write_text(f"{TUMBLR.format('a')}\ta dog\n")
    return {"clips": ["tumblr_a_500.gif"]}


def mrw(root: Path) -> Files:
    (root / "mrw-v1.0.json").write_text(json.dumps([{"id": "a", "sentence": "a dog"}]))
    return {"clips": ["a.mp4"]}


def msvd(root: Path) -> Files:
    (root / "AllVideoDescriptions.txt").write_text("mv89psg6zh4_33_46 a bird bathes\n")
    return {"clips": ["mv89psg6zh4_33_46.avi"]}


COPIES: dict[str, Callable[[Path], Files]] = {
    "coco": coco,
    "daquar": daquar,
    "flickr30k": flickr("flickr30k"),
    "flickr8k": flickr("flickr8k"),
    "mrw": mrw,
    "msr_vtt": msr_vtt,
    "msr_vtt_1k_a": msr_vtt_1k_a,
    "msvd": msvd,
    "tgif": tgif,
    "vatex": vatex,
    "vqa2": vqa2,
}
"""What writes the captions of a copy with a few items."""


def media_places() -> list[tuple[str, Piece, str]]:
    return [
        (name, piece, path)
        for name, facts in FACTS.items()
        for piece in facts.pieces
        if piece.media
        for path in piece.paths
    ]


def folder_of(path: str) -> str:
    """Return the folder that a piece's path means: itself, or that of the files that a pattern names."""
    return path if path.endswith("/") else str(Path(path).parent)


def place(root: Path, folder: str, names: list[str]) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        (root / folder / name).write_bytes(name.encode())


def test_every_data_set_with_media_has_a_copy_here() -> None:
    assert {name for name, _, _ in media_places()} == set(COPIES)


def found_there(root: Path, name: str, piece: Piece, path: str) -> None:
    """One piece lies in one of its places, the others in their first: loader and check find all files."""
    root.mkdir()
    files = COPIES[name](root)
    for each in FACTS[name].pieces:
        if each.media:
            place(root, folder_of(path if each is piece else each.paths[0]), files[each.what])
    corpus = open_corpus(f"{name}:{root}")
    assert not [problem for problem in corpus.problems if problem.startswith("skipped")]
    where = root / folder_of(path)
    assert {file.name for file in corpus.image_paths if file.parent == where} == set(files[piece.what])
    (found,) = [line for line in check_data(f"{name}:{root}") if line.text.startswith(f"{piece.what}: {root}")]
    assert found.mark == "ok" and str(where) in found.text


def test_media_are_found_wherever_the_facts_say(tmp_path: Path, failures: Failures) -> None:
    for number, (name, piece, path) in enumerate(media_places()):
        with failures.of(name, piece.what, path):
            found_there(tmp_path / str(number), name, piece, path)


@pytest.mark.parametrize(
    ("name", "folder"), [("vatex", "val"), ("vatex", "validation"), ("vatex", "videos/val"), ("msr_vtt", "TestVideo")]
)
def test_a_copy_with_clips_of_one_part_alone(name: str, folder: str, tmp_path: Path) -> None:
    """The loader opens it with the clips of that part, so the check finds them too."""
    names = COPIES[name](tmp_path)["clips"][1:]
    place(tmp_path, folder, names)
    assert [path.name for path in open_corpus(f"{name}:{tmp_path}").image_paths] == names
    (found,) = [line for line in check_data(f"{name}:{tmp_path}") if line.text.startswith(f"clips: {tmp_path}")]
    assert found.mark == "ok" and found.text == f"clips: {tmp_path / folder}"


def test_media_in_none_of_the_places_are_missing_to_both(tmp_path: Path) -> None:
    for name, write in COPIES.items():
        root = tmp_path / name
        root.mkdir()
        write(root)
        wrong = [line.text.partition(":")[0] for line in check_data(f"{name}:{root}") if line.mark == "WRONG"]
        assert {piece.what for piece in FACTS[name].pieces if piece.media and piece.required} <= set(wrong)
        assert names(refusal(DataError, open_corpus, f"{name}:{root}"), root)


def test_one_registration_holds_loader_and_facts() -> None:
    assert {name: facts.name for name, facts in FACTS.items()} == {name: name for name in FACTS}
