"""A table or lines of JSON: the same names in every format, alone in a folder or by its path."""

from __future__ import annotations

import json
import shutil
import tarfile
import tracemalloc
from itertools import product

import numpy as np
import pytest
from drawn import drawn

from openvse.datasets import open_corpus
from openvse.datasets.folder import open_table, read_table
from openvse.datasets.rows import CAPTION_FIELDS, IMAGE_FIELDS, MAX_CAPTION_BYTES, table_lines
from openvse.errors import DataError
from tests.failures import Failures
from tests.naming import names, refusal


def write(folder, suffix: str, rows: list[dict], name: str = "pets"):
    """Write rows as a table of some kind."""
    path = folder / f"{name}{suffix}"
    match suffix:
        case ".jsonl":
            path.write_text("\n".join(map(json.dumps, rows)))
        case ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.Table.from_pylist(rows), path)
        case _:
            mark = {".csv": ",", ".tsv": "\t"}[suffix]
            lines = [mark.join(rows[0]), *(mark.join(row.values()) for row in rows)]
            path.write_text("\n".join(lines))
    return path


@pytest.fixture
def pets(tmp_path):
    for number, name in enumerate("ab"):
        (tmp_path / f"{name}.png").write_bytes(drawn(number))
    return tmp_path


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_columns_that_are_not_read_are_named(pets, suffix, caplog):
    rows = [{"image": f"{n}.png", "caption": f"pet {n}", "caption 2": "more", "text": "x"} for n in "ab"]
    path = write(pets, suffix, rows)
    for source in (pets, path):
        caplog.clear()
        assert open_corpus(source).captions == ("pet a", "pet b")
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "caption 2, text" in caplog.text and path.name in caplog.text
    caplog.clear()
    open_corpus(write(pets, suffix, [{key: row[key] for key in ("image", "caption")} for row in rows]))
    assert not caplog.records


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_the_same_names_in_every_format(pets, suffix):
    failures, ids, splits = Failures(), ("a.png", "b.png"), ("train", "test")
    for image, caption, alone in product(IMAGE_FIELDS, CAPTION_FIELDS, (True, False)):
        rows = [{image: n, caption: f"pet of {n}", "split": s} for n, s in zip(ids, splits, strict=True)]
        path = write(pets, suffix, rows)
        with failures.of(image, caption, alone):
            corpus = open_corpus(pets if alone else path)
            assert (corpus.image_ids, corpus.splits) == (ids, splits)
            assert corpus.captions == ("pet of a.png", "pet of b.png")
            assert all(image.is_file() for image in corpus.image_paths)
    assert not failures, failures


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_columns_that_are_named(pets, suffix):
    rows = [
        {"pic": f"{n}.png", "caption": "no", "Alt": f"pet {n}", "more": f"{n} runs", "no": f"{number}"}
        for number, n in enumerate("ab", start=7)
    ]
    path = write(pets, suffix, rows)
    for source in (pets, path, f"table:{path}", f"folder:{pets}"):
        corpus = open_corpus(f"{source}#image=pic,caption=Alt,caption=more,id=no")
        assert corpus.image_ids == ("7", "8")
        assert corpus.captions == ("pet a", "a runs", "pet b", "b runs")
        assert corpus.image_paths == (pets / "a.png", pets / "b.png")
        for wrong in ("image=pix,caption=Alt", "image=pic,caption=Ald", "image=pic,caption=Alt,id=pics"):
            assert names(refusal(DataError, open_corpus, f"{source}#{wrong}"), f"pets{suffix}", "pic, caption")
    assert open_corpus(f"{path}#image=pic").captions == ("no",)  # the caption has its usual name


def test_columns_that_cannot_be_named(pets):
    write(pets, ".csv", [{"image": "a.png", "text": "x"}])
    for words in ("imag=x", "image=", "image=x,image=y", "image=x,y"):
        assert names(refusal(DataError, open_corpus, f"{pets}#{words}"), "image=COLUMN")
    for name in ("sidecars", "flickr8k"):
        assert names(refusal(DataError, open_corpus, f"{name}:{pets}#image=image"), name)
    odd = pets / "a#image=b"
    odd.mkdir()
    (odd / "a.png").write_bytes(drawn(0))
    write(odd, ".csv", [{"image": "a.png", "text": "of an odd folder"}])
    assert open_corpus(odd).captions == ("of an odd folder",)


def test_folders_are_splits_where_images_have_identifiers(tmp_path):
    for number, split in enumerate(("train", "test")):
        (tmp_path / split).mkdir()
        (tmp_path / split / "1.png").write_bytes(drawn(number))
    rows = [{"image": f"{s}/1.png", "text": s, "key": f"k-{s}"} for s in ("train", "test")]
    corpus = open_corpus(f"{write(tmp_path, '.csv', rows)}#id=key")
    assert (corpus.image_ids, corpus.splits) == (("k-train", "k-test"), ("train", "test"))


def test_an_identifier_of_two_images_or_none_is_refused(pets):
    rows = [{"image": f"{n}.png", "text": n, "id": "1"} for n in "ab"]
    for suffix in (".csv", ".jsonl", ".parquet"):
        assert names(refusal(DataError, open_corpus, f"{write(pets, suffix, rows)}#id=id"), "'1'")
        empty = write(pets, suffix, [*rows, {**rows[0], "id": ""}])
        assert names(refusal(DataError, open_corpus, f"{empty}#id=id"), "'id'")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_sentences_of_karpathy_in_rows(pets, suffix):
    said = [[{"raw": f"{n} one", "tokens": [n, "one"]}, {"raw": f"{n} two", "tokens": []}] for n in "ab"]
    rows = [{"filename": f"{n}.png", "sentences": each} for n, each in zip("ab", said, strict=True)]
    assert open_corpus(write(pets, suffix, rows)).captions == ("a one", "a two", "b one", "b two")
    rows = [{"filename": "a.png", "sentences": said[0][1]}, {"filename": "b.png", "sentences": said[1][0]}]
    assert open_corpus(write(pets, suffix, rows)).captions == ("a two", "b one")
    rows = [{"filename": "a.png", "sentences_raw": ["a", "b"]}]
    assert open_corpus(write(pets, suffix, rows)).captions == ("a", "b")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_several_captions_in_a_list_or_in_several_rows(pets, suffix):
    write(pets, suffix, [{"image": "a.png", "captions": ["a dog", "it runs"]}])
    assert open_corpus(pets).captions == ("a dog", "it runs")
    rows = [{"image": f"{n}.png", "caption": text} for n, text in ("ax", "by", "az")]
    assert open_corpus(write(pets, suffix, rows)).captions == ("x", "z", "y")


def test_tables_named_after_splits(pets):
    write(pets, ".csv", [{"image": "a.png", "text": "x"}], "train")
    write(pets, ".csv", [{"image": "b.png", "text": "y"}], "test")
    corpus = open_corpus(pets)
    assert dict(zip(corpus.captions, corpus.splits, strict=True)) == {"x": "train", "y": "test"}


def test_several_tables_of_other_names_are_refused(pets):
    write(pets, ".csv", [{"image": "a.png", "text": "x"}], "one")
    write(pets, ".csv", [{"image": "b.png", "text": "y"}], "two")
    assert names(refusal(DataError, open_corpus, pets), "2 files", "one.csv", "two.csv")


def test_a_table_of_something_else_does_not_count(pets):
    write(pets, ".csv", [{"image": "a.png", "text": "x"}], "pets")
    write(pets, ".csv", [{"image": "a.png", "width": "4"}], "sizes")
    assert open_corpus(pets).captions == ("x",)


def test_types_that_are_refused_name_file_row_and_key(pets):
    rows = [{"image": f"{n}.png", "caption": "x", "split": s} for n, s in (("a", ""), ("b", "trian"))]
    path = write(pets, ".parquet", rows)
    assert names(refusal(DataError, open_corpus, path), "pets.parquet", 1, "'split'", "'trian'")
    path = write(pets, ".parquet", [{"image": "a.png", "caption": 5}])
    assert names(refusal(DataError, open_corpus, path), "pets.parquet", 0, "'caption'", 5)
    path = write(pets, ".parquet", [{"image": 5, "caption": "x"}])
    assert names(refusal(DataError, open_corpus, path), "'image'")
    path = write(pets, ".csv", [{"image": "a.png", "caption": "x", "split": "trian"}])
    assert names(refusal(DataError, open_corpus, path), "pets.csv", 2, "'split'", "'trian'")


def test_pyarrow_is_named_where_it_is_missing(pets, monkeypatch):
    path = write(pets, ".parquet", [{"image": "a.png", "caption": "x"}])
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert names(refusal(Exception, open_corpus, path), "pyarrow")


def test_metadata_in_parquet_and_folders_that_are_splits(tmp_path):
    rows = []
    for number, split in enumerate(("train", "validation", "test")):
        (tmp_path / split).mkdir()
        (tmp_path / split / "1.png").write_bytes(drawn(number))
        rows.append({"file_name": f"{split}/1.png", "text": split})
    write(tmp_path, ".parquet", rows, "metadata")
    corpus = open_corpus(tmp_path)
    assert corpus.captions == corpus.splits and {*corpus.splits} == {"train", "validation", "test"}


def test_an_imagefolder_below_data(tmp_path):
    for number, split in enumerate(("train", "test")):
        folder = tmp_path / "data" / split
        folder.mkdir(parents=True)
        (folder / "1.png").write_bytes(drawn(number))
        (folder / "metadata.csv").write_text(f"file_name,text\n1.png,for {split}\n")
    assert open_corpus(tmp_path).split("test").image_ids == ("data/test/1.png",)


@pytest.mark.parametrize(
    ("delimiter", "image", "caption"),
    [(",", "file_name", "text"), (";", "Image", "Caption"), ("\t", "path", "caption"), ("|", "image", "text")],
)
def test_rows_of_one_image_are_joined(tmp_path, delimiter, image, caption):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).touch()
    rows = [[image, caption, "split"], ["a.jpg", "a dog", "train"], ["b.jpg", "a cat", "dev"]]
    rows.append(["a.jpg", "it runs", "train"])
    path = tmp_path / "pets.csv"
    path.write_text("\n".join(delimiter.join(row) for row in rows))
    corpus = open_table(path)
    assert corpus.name == "pets"
    assert corpus.image_ids == ("a.jpg", "b.jpg")
    assert corpus.captions == ("a dog", "it runs", "a cat")
    assert corpus.splits == ("train", "validation")
    assert corpus.image_paths == (tmp_path / "a.jpg", tmp_path / "b.jpg")
    np.testing.assert_array_equal(corpus.relevance.images, [0, 0, 1])


def test_quotation_marks_delimiters_and_byte_order_marks(tmp_path):
    path = tmp_path / "captions.csv"
    path.write_bytes('\ufeffimage,caption\r\na.jpg,"He said ""stop"", and\r\nleft"\r\n\r\nb.jpg,später\r\n'.encode())
    found = {record.image_id: list(record.captions) for record in read_table(path)}
    assert found == {"a.jpg": ['He said "stop", and\nleft'], "b.jpg": ["später"]}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", []),
        ("image,caption\n", []),
        ("picture,caption\n", ["file_name", "image", "path", "picture, caption"]),
        ("image,words\n", ["captions", "caption", "text", "description"]),
        ("image,caption\na.jpg,one,two\n", ["line 2", 3, 2]),
        ('image,caption\na.jpg,ok\nb.jpg,"never closed\n', ["line 3"]),
        ("image,caption,split\na.jpg,x,train\na.jpg,y,\n", ["'a.jpg'"]),
    ],
)
def test_malformed_tables_name_the_line(tmp_path, content, named):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    assert names(refusal(DataError, open_table, path, require_images=False), "bad", *named)


def test_files_that_cannot_be_read(tmp_path):
    latin = tmp_path / "latin.csv"
    latin.write_bytes("image,caption\na.jpg,später".encode("latin-1"))
    assert names(refusal(DataError, table_lines, latin), 22, "UTF", "UTF")
    assert names(refusal(DataError, table_lines, tmp_path / "none.csv"), "none.csv")


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("one\u2028still one\r\ntwo\n".encode())
    assert table_lines(path) == ["one\u2028still one", "two", ""]
    path.write_bytes(b"")
    assert table_lines(path) == []


@pytest.mark.parametrize(
    ("header", "row", "captions"),
    [
        ("filepath\ttitle", "a.png\ta dog", ("a dog",)),
        ("title,description,filename", "t,d,a.png", ("d",)),
        ("file,text,title", "a.png,x,t", ("x",)),
        ("image,caption_0,caption_1,caption_2", "a.png,x,,z", ("x", "z")),
    ],
)
def test_columns_of_other_tools(tmp_path, header, row, captions):
    (tmp_path / "a.png").write_bytes(drawn(0))
    (tmp_path / "captions.csv").write_text(f"{header}\n{row}\n")
    for place in (tmp_path, tmp_path / "captions.csv"):
        assert open_corpus(place).captions == captions


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_the_error_of_a_folder_names_its_table_and_the_columns(pets, suffix):
    table = write(pets, suffix, [{"picture": "a.png", "words": "a dog"}])
    assert names(refusal(DataError, open_corpus, pets), table.name, "file_name", "picture, words")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_long_caption_is_read_and_one_that_is_too_long_is_refused(pets, suffix):
    long = "word " * 40_000
    rows = [{"image": "a.png", "caption": long}, {"image": "b.png", "caption": "a cat"}]
    assert open_corpus(write(pets, suffix, rows)).captions == (long.strip(), "a cat")
    rows[0]["caption"] = "x" * (MAX_CAPTION_BYTES + 1)
    assert names(refusal(DataError, open_corpus, write(pets, suffix, rows)), f"pets{suffix}")


@pytest.mark.parametrize("kind", ["text", "list"])
def test_a_small_file_of_huge_cells_takes_no_memory(tmp_path, kind):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    huge = "a" * 4_000_000
    cell = huge if kind == "text" else [huge]
    path = tmp_path / "bomb.parquet"
    pq.write_table(
        pa.table({"image": ["a.png"] * 50, "caption": [cell] * 50}), path, compression="zstd", use_dictionary=True
    )
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    assert names(refusal(DataError, open_table, path, require_images=False), "bomb.parquet", "'caption'")
    assert tracemalloc.get_traced_memory()[1] < 20_000_000  # of Python's own objects
    assert pa.total_allocated_bytes() < 200_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 500 + "1" + "}" * 500, "9" * 5000, "{"])
def test_json_that_no_data_hold_is_refused_with_its_line(tmp_path, text):
    line = '{"file_name": "a.png", "captions": ' + text + "}"
    (tmp_path / "metadata.jsonl").write_text(f"{line}\n")
    assert names(refusal(DataError, open_corpus, tmp_path, require_images=False), "metadata.jsonl, line 1")


def test_files_of_captions_that_lead_outside_are_refused(tmp_path):
    secret = tmp_path / "secret.jsonl"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes(drawn(0))
    for name in ("metadata.jsonl", "other.jsonl", "a.txt"):
        line = '{"file_name": "a.png", "captions": "a secret"}'
        secret.write_text("a secret" if name == "a.txt" else line)
        link = tmp_path / "data" / name
        link.symlink_to(secret)
        assert names(refusal(DataError, open_corpus, tmp_path / "data", allow_outside=True), name)
        link.unlink()
        shutil.copy(secret, link)
        assert len(open_corpus(tmp_path / "data").captions) == 1  # a file of its own is read
        link.unlink()


ENCODED = {
    '["a dog", "a cat"]': ["a dog", "a cat"],
    "['a dog', \"it's a cat\"]": ["a dog", "it's a cat"],
    "['a dog' 'a cat']": ["a dog", "a cat"],
    "[u'a dog']": ["a dog"],
    "('a dog', 'a cat')": ["a dog", "a cat"],
    '{"raw": "a dog", "tokens": ["a", "dog"]}': ["a dog"],
    '[{"raw": "a dog"}, {"raw": "a cat"}]': ["a dog", "a cat"],
    "[music] (a dog)": ["[music] (a dog)"],
    "(a dog)": ["(a dog)"],
    '{"text": "a dog"}': None,
    '["a dog", 3]': None,
    '["a dog", "a c': None,
    "['a dog' ... 'a cat']": None,
    "{'raw': 'a dog'}": None,
}


@pytest.mark.medium
def test_a_cell_that_encodes_a_list_is_this_list(tmp_path, failures: Failures):
    kinds = ".csv", ".tsv", ".jsonl", ".parquet", ".tar", ".txt"
    for number, (kind, (cell, captions)) in enumerate(product(kinds, ENCODED.items())):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.png").write_bytes(drawn(0))
        quoted = f'"{cell.replace(chr(34), chr(34) * 2)}"' if kind in (".csv", ".tsv") else cell
        row = {"file_name": "a.png", "captions": quoted}
        if kind == ".tar":
            (folder / "a.json").write_text(json.dumps(row))
            with tarfile.open(folder / "a.tar", "w") as archive:
                for name in ("a.png", "a.json"):
                    archive.add(folder / name, name)
        elif kind == ".txt":
            (folder / "a.txt").write_text(cell)
        else:
            write(folder, kind, [row], "metadata" if kind == ".jsonl" else "a")
        source = folder if kind in (".txt", ".jsonl") else folder / f"a{kind}"
        with failures.of(kind, cell):
            if captions is None:
                place = "metadata.jsonl, line 1" if kind == ".jsonl" else "a."
                assert names(refusal(DataError, open_corpus, source), place)
            else:
                assert [*open_corpus(source).captions] == captions


def test_no_split_of_equal_files_says_why(tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(drawn(0))
        (tmp_path / f"{number}.txt").write_text(f"number {number}")
    assert names(refusal(DataError, open_corpus(tmp_path).split, "validation"), "'validation'", 6, 0, 6)
