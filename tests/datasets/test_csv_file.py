"""Tables of captions."""

import numpy as np
import pytest

from openvse.datasets.rows import read_lines
from openvse.datasets.table import open_csv, read_table
from openvse.errors import DataError


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize(
    ("image", "caption"), [("file_name", "text"), ("Image", "Caption"), ("path", "caption")]
)
def test_rows_of_one_image_are_joined(tmp_path, delimiter, image, caption):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).touch()
    rows = [[image, caption, "split"], ["a.jpg", "a dog", "train"], ["b.jpg", "a cat", "dev"]]
    rows.append(["a.jpg", "it runs", "train"])
    path = tmp_path / "pets.csv"
    path.write_text("\n".join(delimiter.join(row) for row in rows))
    corpus = open_csv(path)
    assert corpus.name == "pets"
    assert corpus.image_ids == ("a.jpg", "b.jpg")
    assert corpus.captions == ("a dog", "it runs", "a cat")
    assert corpus.splits == ("train", "validation")
    assert corpus.image_paths == (tmp_path / "a.jpg", tmp_path / "b.jpg")
    np.testing.assert_array_equal(corpus.relevance.images, [0, 0, 1])


def test_quotation_marks_delimiters_and_byte_order_marks(tmp_path):
    path = tmp_path / "captions.csv"
    path.write_bytes(
        '\ufeffimage,caption\r\na.jpg,"He said ""stop"", and\r\nleft"\r\n\r\nb.jpg,später\r\n'.encode()
    )
    found = {record.image_id: list(record.captions) for record in read_table(path)}
    assert found == {"a.jpg": ['He said "stop", and\nleft'], "b.jpg": ["später"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty; its first line must name the columns"),
        ("picture,caption\n", "no column file_name or image or path or video .found: picture, caption."),
        ("image,words\n", "no column captions or caption or text or description"),
        ("image,caption\na.jpg,one,two\n", "line 2: 3 columns where the header has 2; put a cell"),
        ('image,caption\na.jpg,ok\nb.jpg,"never closed\n', "line 3: unexpected end of data; put a cell"),
        (
            "image,caption,split\na.jpg,x,train\na.jpg,y,test\n",
            "line 3: image 'a.jpg' is in split 'test' and in",
        ),
    ],
)
def test_malformed_tables_name_the_line(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        open_csv(path, require_images=False)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_only_a_header(tmp_path):
    path = tmp_path / "empty.csv"
    path.write_text("image,caption\n")
    with pytest.raises(DataError, match="no image with a caption is left"):
        open_csv(path)


def test_files_that_cannot_be_read(tmp_path):
    latin = tmp_path / "latin.csv"
    latin.write_bytes("image,caption\na.jpg,später".encode("latin-1"))
    with pytest.raises(DataError, match="byte 22 is not UTF-8; save the file as UTF-8"):
        read_lines(latin)
    with pytest.raises(DataError, match=r"it cannot be read .No such file"):
        read_lines(tmp_path / "none.csv")


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("one\u2028still one\r\ntwo\n".encode())
    assert read_lines(path) == ["one\u2028still one", "two", ""]
    path.write_bytes(b"")
    assert read_lines(path) == []
