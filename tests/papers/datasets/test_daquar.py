"""DAQUAR: its files of alternating lines, split by picture."""

from pathlib import Path

import pytest

from openvse.corpus.splits import hashed_splits
from openvse.errors import DataError
from openvse_papers.datasets.published import detect_daquar, open_daquar
from tests.naming import names, refusal

TRAIN, TEST = [f"image{n}" for n in range(3, 23)], ["image1", "image2"]
PAIRS = [
    ("what is on the desk in the image1 ?", "book, scissor, tape_dispenser", "what is on the desk"),
    ("how many chairs are there on the image1 ?", "6", "how many chairs are there"),
    ("what is dominant color of the image2 ?", "red", "what is dominant color"),
    ("what is the largest object in this image2 ?", "sofa", "what is the largest object"),
    ("what is on the table image3 ?", "cup", "what is on the table"),
    ("how many blue towels are there in image3 ?", "2", "how many blue towels are there"),
    ("what are the shelves made of in the image4 ?", "glass", "what are the shelves made of"),
    *((f"what is it in the {name} ?", "door", "what is it") for name in TRAIN[2:]),
]


def picture_of(question: str) -> str:
    return question.split()[-2]


def lay_out(root: Path, suffix: str = ".jpg", folder: str = "images") -> Path:
    (root / folder).mkdir(parents=True)
    for name in (*TRAIN, *TEST):
        (root / folder / f"{name}{suffix}").touch()
    return root


def write_lists(root: Path) -> None:
    (root / "train_images_list.txt").write_text("\n".join(TRAIN))
    (root / "test_images_list.txt").write_text("\n".join(TEST))


def write_pairs(path: Path, pairs=PAIRS) -> None:
    path.write_text("".join(f"{question}\n{answer}\n" for question, answer, _ in pairs))


def all_pairs(root: Path) -> Path:
    write_lists(lay_out(root))
    write_pairs(root / "all_qa_pairs.txt")
    return root


def original(root: Path) -> Path:
    """The owners' own files, which split by picture."""
    lay_out(root, ".png", "nyu_depth_images")
    write_pairs(root / "qa.894.raw.train.txt", PAIRS[4:])
    write_pairs(root / "qa.894.raw.test.txt", PAIRS[:4])
    return root


@pytest.mark.parametrize("make", [all_pairs, original])
def test_every_form_gives_the_same_questions(tmp_path, make):
    root = make(tmp_path)
    assert detect_daquar(root)
    found = open_daquar(root)
    assert len(found) == len(PAIRS) and all(question.path.is_file() for question in found.questions)
    asked = {(question.image_id, question.text): question for question in found.questions}
    assert set(asked) == {(picture_of(question), text) for question, _, text in PAIRS}
    assert asked["image1", "what is on the desk"].answers == ("book", "scissor", "tape_dispenser")
    assert asked["image3", "how many blue towels are there"].answers == ("2",)
    assert set(found.split("test").image_ids) == set(TEST)
    cut = dict(zip(TRAIN, hashed_splits(TRAIN, (0.9, 0.1, 0.0)), strict=True))
    assert set(found.split("validation").image_ids) == {n for n in TRAIN if cut[n] == "validation"}
    assert (len(found.split("train").image_ids), len(found.split("validation").image_ids)) == (18, 2)
    (note,) = found.problems
    assert note.startswith("DAQUAR has no published validation split: 2 of its 20 training images validate")


def test_questions_are_numbered_by_their_picture(tmp_path):
    first, second, third, *_ = open_daquar(all_pairs(tmp_path)).questions
    assert [q.question_id for q in (first, second, third)] == ["image1#0", "image1#1", "image2#0"]
    assert (first.image_id, first.path, first.kind) == ("image1", tmp_path / "images" / "image1.jpg", "")


def test_without_lists_the_split_is_by_hash(tmp_path):
    lay_out(tmp_path)
    write_pairs(tmp_path / "all_qa_pairs.txt")
    found = open_daquar(tmp_path)
    assert {question.split for question in found.questions} == {""}
    assert found.problems
    parts = [set(found.split(name).image_ids) for name in ("train", "validation", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(found.image_ids)


def test_missing_pictures(tmp_path):
    root = all_pairs(tmp_path)
    (root / "images" / "image2.jpg").unlink()
    found = open_daquar(root)
    assert (len(found), "image2" in found.image_ids) == (len(PAIRS) - 2, False)
    assert names(found.problems[1], 2, 1, "image2")
    for path in (root / "images").iterdir():
        path.unlink()
    assert names(refusal(DataError, open_daquar, root), "image1.jpg", "image1.png")
    assert len(open_daquar(root, require_images=False)) == len(PAIRS)


def test_missing_and_malformed_files(tmp_path):
    assert not detect_daquar(tmp_path)
    assert names(refusal(DataError, open_daquar, tmp_path), "qa.894.raw.train.txt", "all_qa_pairs.txt")
    path = tmp_path / "all_qa_pairs.txt"
    for text, line in (("what is it ?\ncup\n", 1), ("what in the image1 ?\ncup\nwho in the image1 ?\n", 3)):
        path.write_text(text)
        assert names(refusal(DataError, open_daquar, tmp_path), path, line)


def test_the_lists_alone_are_no_daquar(tmp_path):
    write_lists(tmp_path)
    assert not detect_daquar(tmp_path)
    (tmp_path / "all_qa_pairs.txt").touch()
    assert detect_daquar(tmp_path)
