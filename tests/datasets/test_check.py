"""The check of a copy: what is missing, wrong or in two splits is told, with where to get it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from openvse.corpus import Facts, Form, Piece
from openvse.datasets import DATASETS, check
from openvse.datasets.check import check_data, describe_data, more_captions
from openvse.datasets.registry import DataSet
from openvse.errors import RecipeError
from tests.facts import FACTS
from tests.naming import names, refusal
from tests.papers.datasets.test_daquar import all_pairs

SMALL = Facts(
    name="flickr8k",
    title="a data set a thousand times smaller",
    pieces=FACTS["flickr8k"].pieces,
    forms=(
        Form("the JSON", (6, 1, 1), 40, ends={"train": ("0.jpg", "5.jpg"), "": ("0.jpg", "7.jpg")}),
        Form("the lists", (6, 1, 1), 45, outside=1, ends={"test": ("7.jpg", "7.jpg")}),
    ),
    licence="for tests only",
    captions_each=5,
)


def write_flickr(root: Path, counts: tuple[int, int, int], captions: int = 5, extra: int = 0) -> Path:
    """Lay out a data set with so many images in train, dev and test, and some in none."""
    (root / "images").mkdir(parents=True)
    (root / "splits").mkdir()
    names = [f"{number}.jpg" for number in range(sum(counts) + extra)]
    for name in names:
        (root / "images" / name).write_text(f"the picture {name}")
    lines = [f"{name}#{i}\tsentence {i} of {name}" for name in names for i in range(captions)]
    (root / "captions.txt").write_text("\n".join(lines))
    start = 0
    for split, count in zip(("train", "dev", "test"), counts, strict=True):
        (root / "splits" / f"{split}.txt").write_text("\n".join(names[start : start + count]))
        start += count
    return root


def with_facts(monkeypatch, name: str, facts: Facts) -> None:
    monkeypatch.setitem(DATASETS._parts, name, DataSet(DATASETS.get(name), facts))


@pytest.fixture
def small(monkeypatch) -> None:
    with_facts(monkeypatch, "flickr8k", SMALL)


def texts(findings: list[check.Finding], mark: str) -> list[str]:
    return [finding.text for finding in findings if finding.mark == mark]


def by_key(found: list[str]) -> dict[str, str]:
    """Return what findings say, by what they are about."""
    return dict(text.partition(": ")[::2] for text in found)


@pytest.mark.parametrize("name", list(FACTS))
def test_an_empty_folder(name, tmp_path):
    findings = check_data(f"{name}:{tmp_path}")
    wrong = texts(findings, "WRONG")
    for piece in FACTS[name].pieces:
        told = next(finding for finding in findings if finding.text.startswith(f"{piece.what}: none of"))
        assert piece.source in told.text and piece.paths[0] in told.text
        assert told.ok is (not piece.required)
    assert len(wrong) == sum(piece.required for piece in FACTS[name].pieces)
    assert texts(findings, "note")[-1] == f"terms: {FACTS[name].licence}"
    assert all("\n" not in finding.text for finding in findings)


@pytest.mark.parametrize("facts", FACTS.values(), ids=lambda facts: facts.name)
def test_facts_are_of_registered_data_sets_and_agree_with_themselves(facts):
    assert FACTS[facts.name] is facts and facts.name in DATASETS
    assert facts.pieces and facts.licence and facts.title
    for form in facts.forms:
        if facts.captions_each is not None:
            assert form.num_captions == facts.captions_each * form.num_items
        assert set(form.ends) <= {"", "train", "validation", "test"}
        assert all(first <= last for first, last in form.ends.values())


def test_the_published_counts():
    """The figures of the papers: Karpathy's splits, restval within COCO's training."""
    assert FACTS["flickr8k"].forms[0].splits == (6000, 1000, 1000)
    assert FACTS["flickr8k"].forms[1].num_items == 8091
    assert FACTS["flickr30k"].forms[0].splits == (29_000, 1014, 1000)
    assert FACTS["flickr30k"].forms[1].num_items == 31_783
    assert FACTS["coco"].forms[0].splits == (113_287, 5000, 5000)
    assert {form.num_items for form in FACTS["coco"].forms} == {82_783 + 40_504}


def test_a_complete_copy(tmp_path, small):
    root = write_flickr(tmp_path, (6, 1, 1), extra=1)
    with (root / "captions.txt").open("a") as file:
        file.write("\n2258277193_586949ec62.jpg.1#0\tthe owners' own slip\n")
    findings = check_data(f"flickr8k:{root}")
    told = by_key(texts(findings, "ok"))
    counts = {"images": "9", "captions": "45", "train": "6", "validation": "1", "test": "1"}
    assert told.items() >= counts.items() and "leakage" in told
    assert told["identifiers of test"] == "7.jpg to 7.jpg"
    (slip,) = texts(findings, "note")
    assert names(slip, 1)


def test_the_nearest_form_is_what_is_expected(tmp_path, small):
    root = write_flickr(tmp_path, (6, 1, 1), captions=4)
    (root / "images" / "0.jpg").unlink()
    findings = check_data(f"flickr8k:{root}")
    told = by_key(texts(findings, "WRONG"))
    for key, found in {"images": (7, 8), "captions": (28, 40), "train": (5, 6)}.items():
        assert names(told[key], *found, "the JSON")
    assert names(told["captions of each of the images"], 5, 7)
    assert names(told["identifiers of train"], "1.jpg to 5.jpg", "0.jpg to 5.jpg")
    assert names(told["identifiers"], "1.jpg to 7.jpg", "0.jpg to 7.jpg")
    assert len(told) == 7 and "for tests only" in findings[-1].text
    assert (str(root / "images" / "0.jpg"),) in [each.cases for each in findings]


def test_the_rest_is_checked_where_the_pictures_are_missing(tmp_path, small):
    root = write_flickr(tmp_path, (6, 1, 1))
    (root / "images").rename(tmp_path / "elsewhere")
    findings = check_data(f"flickr8k:{root}")
    assert [text.split(":")[0] for text in texts(findings, "WRONG")] == ["image files"]
    assert "images: 8" in texts(findings, "ok")
    assert not any("leakage" in finding.text for finding in findings)


def test_half_of_a_piece_is_told_where_the_pictures_are_missing_too(tmp_path):
    (tmp_path / "captions_train2014.json").write_text('{"images": [], "annotations": []}')
    wrong = texts(check_data(f"coco:{tmp_path}"), "WRONG")
    assert [text.split(":")[0] for text in wrong[:2]] == ["image files of train2014", "image files of val2014"]
    assert names(wrong[2], "dataset_coco.json", "annotations/captions_val2014.json")


def test_items_that_are_no_longer_published_are_no_fault(tmp_path, monkeypatch):
    videos = Facts(
        name="flickr8k",
        title="clips of the web",
        pieces=(Piece("clips", ("images/",), "from the web", media=True),),
        forms=(Form("the list", (6, 2, 1), 45),),
        licence="theirs",
        items="clips",
        shrinks=True,
    )
    with_facts(monkeypatch, "flickr8k", videos)
    findings = check_data(f"flickr8k:{write_flickr(tmp_path, (6, 1, 2))}")
    assert "clips: 9" in texts(findings, "ok")
    told = "validation: 1, expected 2; what is missing is no longer published"
    assert texts(findings, "note") == [told, "terms: theirs"]
    assert texts(findings, "WRONG") == ["test: 2, expected 1 (the list)"]  # more than there can be


def test_a_piece_that_can_be_missing(tmp_path, monkeypatch):
    facts = Facts(
        name="flickr8k",
        title="",
        pieces=(*SMALL.pieces, Piece("boxes", ("boxes.json",), "boxes.zip", required=False)),
        forms=(Form("the lists", (1, 1, 1), 15),),
        licence="",
    )
    with_facts(monkeypatch, "flickr8k", facts)
    findings = check_data(f"flickr8k:{write_flickr(tmp_path, (1, 1, 1))}")
    assert all(finding.ok for finding in findings)
    assert texts(findings, "note") == [f"boxes: none of boxes.json in {tmp_path}: get boxes.zip"]


def test_an_image_in_two_lists_is_told(tmp_path, small):
    root = write_flickr(tmp_path, (6, 1, 1))
    with (root / "splits" / "train.txt").open("a") as file:
        file.write("\n7.jpg\n")
    findings = check_data(f"flickr8k:{root}")
    assert next(found for found in findings if "leakage" in found.text).cases == ("7.jpg",)
    assert "test: 1" in texts(findings, "ok") and "train: 6" in texts(findings, "ok")


def test_equal_pictures_in_two_splits_are_told(tmp_path, small):
    root = write_flickr(tmp_path, (6, 1, 1))
    (root / "images" / "7.jpg").write_text("the picture 2.jpg")
    (root / "images" / "3.jpg").write_text("the picture 1.jpg")  # twice in training is no leakage
    (wrong,) = [finding for finding in check_data(f"flickr8k:{root}") if not finding.ok]
    assert names(wrong.text, "leakage: 1 ") and wrong.cases == ("2.jpg (train) = 7.jpg (test)",)
    assert texts(check_data(f"flickr8k:{root}", quick=True), "WRONG") == []


def test_files_that_do_not_open(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "dataset_flickr8k.json").write_text(json.dumps({"images": [{}]}))
    (wrong,) = texts(check_data(f"flickr8k:{tmp_path}"), "WRONG")
    assert "not in Karpathy's format" in wrong


def test_more_captions_are_said_to_help_as_far_as_that_was_measured():
    for images, now, then in ((0, 121, "from 50"), (50, 146, "from 100"), (90, None, "from 200"), (5000, None, "not")):
        said = more_captions(images)
        assert then in said and f"from {images:,} captioned" in said and (now is None or f" {now} of 600" in said)


def test_data_of_ones_own_are_opened_and_counted(tmp_path):
    table = tmp_path / "pets.csv"
    table.write_text("image,caption,split\na.jpg,a dog,train\nb.jpg,a cat,test\n")
    (tmp_path / "a.jpg").write_text("a")
    findings = check_data(table, quick=True)
    counted, enough, more, *others = texts(findings, "ok")
    assert counted == "1 items, 1 captions; splits 1 / 0 / 0, in no split 0"
    assert enough.startswith("1 images for training") and more == more_captions(1)
    assert others == [
        "leakage: no two splits share a file",
        "no two images have the same caption",
        "no caption has fewer than 3 letters",
    ]
    assert "without a file" in texts(findings, "WRONG")[0]


def test_unknown_name(tmp_path):
    assert names(refusal(RecipeError, check_data, f"flickr9k:{tmp_path}"), "'flickr9k'", "'flickr8k'")


def test_a_question_set_is_counted_in_questions(tmp_path, monkeypatch):
    root = all_pairs(tmp_path)
    for path in (root / "images").iterdir():
        path.write_text(path.name)
    with_facts(monkeypatch, "daquar", replace(FACTS["daquar"], forms=(Form("x", (18, 2, 2), 25),)))
    findings = check_data(f"daquar:{root}")
    assert all(finding.ok for finding in findings)
    assert {"images: 22", "questions: 25", "train: 18", "validation: 2", "test: 2"} <= set(texts(findings, "ok"))
    assert texts(findings, "note")[0].startswith("DAQUAR has no published validation split")
    (root / "all_qa_pairs.txt").unlink()
    wrong = texts(check_data(f"daquar:{root}"), "WRONG")
    assert len(wrong) == 2 and "qa.894.raw.train.txt" in wrong[0]


def test_questions_are_described():
    assert "82,783 / 40,504 / 81,434 images (train / validation / test), 1,105,904 questions" in describe_data("vqa2")
    assert "metadata.jsonl" in describe_data("question_folder")
