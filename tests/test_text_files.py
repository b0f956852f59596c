"""Text files of every form are read or named, and no half of a character goes further."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from openvse.cli.options import print_json
from openvse.corpus.corpus import Record, build_corpus
from openvse.datasets.parquet import read_arrow
from openvse.encoders.words_encoder import read_word_vectors
from openvse.encoding.run import list_records
from openvse.errors import DataError, OpenVSEError, TextError
from openvse.files import read_lines, read_text, whole_characters
from openvse.indexing.conditions import parse_condition
from openvse.indexing.database import Root
from openvse.indexing.scanning import METADATA, RootListing, list_sentences, new_metadata
from openvse.media.listing import RULES_FILE, rules_of
from openvse.search.query import Query
from openvse.specs.load import read_recipe
from openvse_papers.vqa.answers import Question, build_questions
from tests.naming import names, refusal

BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\r\nb\n", ["a", "b"]),
        (BOM + "a\u2028b\x0bc\x0cd\x85e\x1cf\rg\nh".encode(), ["a\u2028b\x0bc\x0cd\x85e\x1cf\rg", "h"]),
        (b"a\rb\r", ["a", "b"]),
        (b"a\n\n", ["a", ""]),
        (b"", []),
    ],
)
def test_only_a_newline_ends_a_line(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    assert read_lines(tmp_path / "a.txt") == lines


@pytest.mark.parametrize(("content", "told"), [(b"a\nb\xe9", [2, 3, "0xe9"]), (b"\xff\xfea\0", ["UTF-16"])])
def test_what_is_not_utf_8_is_named(tmp_path: Path, content: bytes, told: list[object]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    for read in (
        read_text,
        list_sentences_of,
        list_records,
        lambda path: read_word_vectors(path, wanted={"a"}, dim=0),
        lambda path: read_recipe(path.rename(path.with_suffix(".yaml"))),
    ):
        assert names(refusal(OpenVSEError, read, path), path.with_suffix(""), *told)
    assert issubclass(TextError, ValueError)


def list_sentences_of(path: Path) -> object:
    return list_sentences(Root(1, str(path), ""))


def test_a_mark_at_the_start_of_a_file_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / RULES_FILE).write_bytes(BOM + b"*.jpg\n")
    assert rules_of(tmp_path)("a.jpg", is_folder=False)
    (tmp_path / RULES_FILE).write_bytes(b"\xe9")
    assert names(refusal(DataError, rules_of, tmp_path), f"{RULES_FILE}, line 1")
    (tmp_path / "w.txt").write_bytes(BOM + b"dog 1\n")
    assert list(read_word_vectors(tmp_path / "w.txt", wanted={"dog"}, dim=1)) == ["dog"]
    (tmp_path / "r.yaml").write_bytes(BOM + b"epochs: 3\n")
    assert read_recipe(tmp_path / "r.yaml")["epochs"] == 3


def test_text_in_parquet_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    stored = pa.array([b"a dog \xe9"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 1, stored.buffers())
    path = tmp_path / "d.parquet"
    parquet.write_table(pa.table({"file_name": ["a.png"], "text": texts}), path)
    for read in (lambda path: list(read_arrow(path)), lambda path: list_records(path, kind="texts")):
        assert names(refusal(DataError, read, path), "d.parquet", "a dog", "xe9")


def test_half_characters_become_one_that_can_be_written(tmp_path: Path) -> None:
    assert whole_characters("a \ud83d\ude00 \ud83d") == "a 😀 \ufffd"
    corpus = build_corpus(
        "d", [Record("a", tmp_path / "a", ["a dog \ud83d"]), Record("b", tmp_path, ["é"])], require_images=False
    )
    assert corpus.captions == ("a dog \ufffd", "é")
    assert [problem for problem in corpus.problems if "half a character" in problem and "first: a" in problem]
    asked = Question("1", "a", tmp_path / "a", "what \udce9", ("red \ud83d",))
    (question,) = build_questions("q", [asked], require_images=False).questions
    assert (question.text, question.answers) == ("what \ufffd", ("red \ufffd",))
    query = Query(os.fsdecode(b"caf\xe9"), avoid=("\ud83d",))
    assert (query.text, query.avoid) == ("caf\ufffd", ("\ufffd",))
    assert parse_condition("place = caf\udce9").value == "caf\ufffd"
    (tmp_path / "t.jsonl").write_text('{"id": "\\ud83d", "text": "a dog \\ud83d"}\n')
    (record,) = list_records(tmp_path / "t.jsonl").records
    assert (record.item.id, record.text) == ("\ufffd", "a dog \ufffd")
    (tmp_path / METADATA).write_text('{"file_name": "a", "place": ["R\\ud83dom"]}\n')
    said = new_metadata(None, RootListing(Root(0, str(tmp_path), ""), []), has_new=True)
    assert said is not None and said.lines == {"a": '{"file_name": "a", "place": ["R\\ufffdom"]}'}


def test_a_document_of_names_that_are_not_utf8_is_whole(capsys) -> None:
    print_json("search", {"path": "bad\udcff.png", "face": "\U0001f600"})
    assert json.loads(capsys.readouterr().out.encode("ascii"))["result"] == {
        "path": "bad\ufffd.png",
        "face": "\U0001f600",
    }
