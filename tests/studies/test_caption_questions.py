"""``studies/caption_questions.py`` makes questions of captions that openvse reads as a question set."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from openvse_papers.datasets.published import open_question_folder

pytest.importorskip("denckring_en_pos")
STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES))
    return importlib.import_module("caption_questions")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        (
            "A brown dog is running in the grass .",
            {"what color is the dog?": "brown", "what is running in the grass?": "dog"},
        ),
        ("A man climbing a wall .", {"what is climbing a wall?": "man"}),
        ("Two dogs play in the snow .", {"how many dogs are there?": "two", "what play in the snow?": "dogs"}),
        ("A black dog and a white dog .", {}),  # which one?
        ("", {}),
    ],
)
def test_a_caption_answers_questions(script: ModuleType, caption: str, expected: dict[str, str]) -> None:
    words = script.split_words(caption)
    asked = script.ask(words, script.tag_words(words))
    assert {each.question: each.answer for each in asked} == expected


def test_captions_of_an_image_answer_the_same_question(script: ModuleType) -> None:
    texts = ("a tan dog is sitting", "a brown dog is sitting", "the brown dog is running")
    captions = [script.split_words(text) for text in texts]
    assert script.questions_of(captions)["color", "what color is the dog?"] == ["brown", "tan"]


def test_the_folder_is_a_question_set_with_fewer_training_images(script: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "flickr8k"
    for folder in ("images", "splits"):
        (source / folder).mkdir(parents=True)
    names = [f"{number}.jpg" for number in range(8)]
    for name in names:
        Image.new("RGB", (8, 8)).save(source / "images" / name)
    for split, members in (("train", names[:4]), ("dev", names[4:6]), ("test", names[6:])):
        (source / "splits" / f"{split}.txt").write_text("\n".join(members))
    captions = "".join(f"{name}#0\tA brown dog is running in the grass .\n" for name in names)
    (source / "captions.txt").write_text(captions)
    for share, images in ((1.0, 4), (0.5, 2)):
        out = tmp_path / str(share)
        script.main([str(source), str(out), "--share", str(share)])
        made = open_question_folder(out)
        counts = {split: len(made.split(split)) for split in ("train", "validation", "test")}
        assert counts == {"train": 2 * images, "validation": 4, "test": 4}
