"""Images that leave the folder of their data set."""

from __future__ import annotations

import json

import pytest
from drawn import drawn

from openvse.datasets import open_corpus, open_questions
from openvse.errors import DataError
from tests.naming import names, refusal


@pytest.fixture
def pets(tmp_path):
    root = tmp_path / "pets"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (root / "a.png").write_bytes(drawn(0))
    (tmp_path / "elsewhere" / "secret.png").write_bytes(drawn(1))
    return root


def list_image(root, name: str) -> None:
    entries = [{"file_name": "a.png", "text": "fine"}, {"file_name": name, "text": "x"}]
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, entries)))


@pytest.mark.parametrize("kind", ["dots", "absolute", "link", "folder link"])
def test_images_outside_are_refused_unless_allowed(pets, kind):
    secret = pets.parent / "elsewhere" / "secret.png"
    match kind:
        case "dots":
            name = "sub/../../elsewhere/secret.png"
        case "absolute":
            name = str(secret)
        case "link":
            name = "link.png"
            (pets / name).symlink_to(secret)
        case _:
            name = "linked/secret.png"
            (pets / "linked").symlink_to(secret.parent)
    list_image(pets, name)
    refused = refusal(DataError, open_corpus, pets)
    assert name in refused and names(refused, "secret.png", "--allow-outside")
    assert len(open_corpus(pets, allow_outside=True)) == 2


def test_names_that_stay_inside_are_fine(pets):
    (pets / "b.png").write_bytes(drawn(2))
    (pets / "c.png").symlink_to("b.png")
    list_image(pets, "sub/../b.png")
    assert len(open_corpus(pets)) == 2
    list_image(pets, "c.png")
    assert len(open_corpus(pets)) == 2


def test_a_data_set_may_itself_be_a_link(pets):
    list_image(pets, "a.png")
    (pets / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "fine"}')
    (pets.parent / "link").symlink_to(pets)
    assert len(open_corpus(pets.parent / "link")) == 1


def test_tables_and_questions_too(pets):
    (pets / "x.csv").write_text("image,text\n../elsewhere/secret.png,x\n")
    assert names(refusal(DataError, open_corpus, pets / "x.csv"), "secret.png", "--allow-outside")
    (pets / "metadata.jsonl").write_text('{"file_name": "../elsewhere/secret.png", "question": "?", "answer": "1"}')
    assert names(refusal(DataError, open_questions, pets), "secret.png", "--allow-outside")
    assert len(open_questions(pets, allow_outside=True)) == 1


def test_an_escape_sequence_in_a_name_is_not_sent_to_the_terminal(pets):
    (pets.parent / "elsewhere" / "\x1b[2J.png").write_bytes(drawn(3))
    list_image(pets, "../elsewhere/\x1b[2J.png")
    assert "\x1b" not in refusal(DataError, open_corpus, pets)
