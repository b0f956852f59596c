import gzip

import pytest
import torch

from openvse.encoders.words_encoder import read_word_vectors
from openvse.errors import DataError
from tests.naming import names, refusal

GLOVE = "the 0.1 0.2 0.3\ndog -1 2.5 3e-1\ncat 0 0 1\n. . . 9 9 9\ndog 7 7 7\n"


def write(tmp_path, text: str):
    path = tmp_path / "vectors.txt"
    path.write_bytes(text.encode())
    return path


def test_only_the_wanted_words_are_read(tmp_path) -> None:
    vectors = read_word_vectors(write(tmp_path, GLOVE), wanted={"dog", "cat", "bird"}, dim=3)
    assert set(vectors) == {"dog", "cat"}
    assert torch.equal(vectors["dog"], torch.tensor([-1, 2.5, 0.3]))


@pytest.mark.parametrize("header", ["", "5 3\n"], ids=["glove", "fasttext"])
def test_a_packed_file_is_read_as_it_is(tmp_path, header: str) -> None:
    path = tmp_path / "cc.en.3.vec.gz"
    path.write_bytes(gzip.compress((header + GLOVE).encode()))
    vectors = read_word_vectors(path, wanted={"the", "dog", "5"}, dim=3)
    assert set(vectors) == {"the", "dog"} and vectors["dog"].tolist() == [-1, 2.5, pytest.approx(0.3)]


def test_a_header_of_another_width_is_named_at_once(tmp_path) -> None:
    path = write(tmp_path, "5 3\n" + GLOVE)
    with pytest.raises(DataError, match="3.*word_dim.*300.*word_dim.*3"):
        read_word_vectors(path, wanted=set(), dim=300)


def test_words_of_any_script_and_with_odd_spaces(tmp_path) -> None:
    text = "2 2\ncafé 1 2\n\u00a0 3 4\n狗 5 6 \n"
    vectors = read_word_vectors(write(tmp_path, text), wanted={"café", "狗"}, dim=2)
    assert {word: vector.tolist() for word, vector in vectors.items()} == {"café": [1, 2], "狗": [5, 6]}


def test_a_packed_file_that_was_cut_off_is_named(tmp_path) -> None:
    path = tmp_path / "vectors.vec.gz"
    packed = gzip.compress("".join(f"word{i} {i} {i * 7919 % 1013} 3\n" for i in range(5000)).encode())
    path.write_bytes(packed[: len(packed) // 2])
    assert names(refusal(DataError, lambda: read_word_vectors(path, wanted={"dog"}, dim=3)), "vectors.vec.gz")


def test_trailing_spaces_and_windows_line_ends_are_fine(tmp_path) -> None:
    vectors = read_word_vectors(write(tmp_path, GLOVE.replace("\n", " \r\n")), wanted={"cat"}, dim=3)
    assert vectors["cat"].tolist() == [0, 0, 1]


def test_a_broken_line_of_another_word_does_not_matter(tmp_path) -> None:
    text = "the 1 2 3\nbroken 1 x\ncat 4 5 6\n"
    assert read_word_vectors(write(tmp_path, text), wanted={"cat"}, dim=3)["cat"].tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GLOVE, "1.*3.*word_dim.*50.*word_dim=3"),
        ("the " + "1 " * 50 + "\ndog 1 2\n", "line 2.*2.*word_dim.*50"),
        ("the " + "1 " * 50 + "\ndog 1 two\n", "line 2"),
        ("<html>\n", "line 1.* 0 "),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_word_vectors(write(tmp_path, text), wanted={"dog"}, dim=50)


def test_files_that_are_missing_or_binary(tmp_path) -> None:
    assert names(refusal(DataError, read_word_vectors, tmp_path / "missing.txt", wanted={"dog"}, dim=3), "missing.txt")
    binary = tmp_path / "vectors.bin"
    binary.write_bytes(b"the 1 2 3\n\xff\xfe\x00")
    assert names(refusal(DataError, lambda: read_word_vectors(binary, wanted={"dog"}, dim=3)), "vectors.bin")
