"""Rows of an .npy file: any of them without the others, and how often an image is repeated."""

import pickle

import numpy as np
import pytest

from array_files import random_features
from openvse.errors import DataError
from openvse.features.arrays import ArrayRows, uneven_groups


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
def test_rows_are_what_numpy_reads(tmp_path, dtype):
    path = tmp_path / "a.npy"
    array = random_features(7).astype(dtype)
    np.save(path, array)
    rows = ArrayRows(path)
    assert (len(rows), rows.shape) == (7, (7, 3, 4))
    np.testing.assert_array_equal(rows.read(2, 3), array[2:5])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(rows)).read(6)[0], array[6])


def test_one_feature_a_row(tmp_path):
    np.save(tmp_path / "a.npy", random_features(5)[:, 0])
    assert ArrayRows(tmp_path / "a.npy").shape == (5, 1, 4)


def test_blocks_hold_whole_groups_and_all_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("openvse.features.arrays._BLOCK_BYTES", 7 * 48)
    array = random_features(30)
    np.save(tmp_path / "a.npy", array)
    blocks = list(ArrayRows(tmp_path / "a.npy").blocks(5))
    assert [start for start, _ in blocks] == [0, 5, 10, 15, 20, 25]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in blocks]), array)
    assert [len(rows) for _, rows in ArrayRows(tmp_path / "a.npy").blocks()] == [7, 7, 7, 7, 2]


@pytest.mark.parametrize("repeats", [1, 2, 5, 20])
def test_repeats_are_counted(tmp_path, repeats):
    np.save(tmp_path / "a.npy", np.repeat(random_features(6), repeats, axis=0))
    assert ArrayRows(tmp_path / "a.npy").repeats() == repeats


def test_repeats_of_what_is_no_number(tmp_path):
    array = np.repeat(random_features(4), 5, axis=0)
    array[:5, 0, 0] = np.nan
    np.save(tmp_path / "a.npy", array)
    assert ArrayRows(tmp_path / "a.npy").repeats() == 5


def test_few_rows(tmp_path):
    for count in (0, 1):
        np.save(tmp_path / "a.npy", random_features(count))
        assert ArrayRows(tmp_path / "a.npy").repeats() == 1


def test_repeats_that_stop_are_refused(tmp_path):
    array = np.repeat(random_features(6), 5, axis=0)
    np.save(tmp_path / "a.npy", array[:-1])
    with pytest.raises(
        DataError, match=r"its first 5 rows are equal, .* but rows 20 to 24|but it has 29 rows"
    ):
        ArrayRows(tmp_path / "a.npy").repeats()
    array[17] += 1
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match="but rows 15 to 19 differ; download the file again"):
        ArrayRows(tmp_path / "a.npy").repeats()


def test_uneven_groups():
    rows = np.repeat(random_features(4), 3, axis=0)
    assert uneven_groups(rows, 3).tolist() == []
    rows[4, 0, 0] += 1
    rows[11, 2, 3] = np.nan
    assert uneven_groups(rows, 3).tolist() == [1, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.arange(6).reshape(1, 2, 3), r"int64 \[1, 2, 3\] where floating-point numbers"),
        (np.ones((2, 3, 4, 5)), "where floating-point numbers"),
        (np.asfortranarray(random_features(3)), "in C order are expected"),
        (np.array([{"a": 1}], dtype=object), "not a complete .npy file"),
        (b"PK\x03\x04 an archive", "not a complete .npy file"),
        (b"", "not a complete .npy file"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "a.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(DataError, match=message) as caught:
        ArrayRows(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_was_cut_off(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, random_features(50))
    whole = path.read_bytes()
    rows = ArrayRows(path)
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError, match="it became shorter"):
        rows.read(49)
    with pytest.raises(DataError, match="not a complete .npy file"):
        ArrayRows(path)
    with pytest.raises(DataError, match="cannot be read"):
        ArrayRows(tmp_path / "none.npy")


def test_whole_numbers_are_read_where_they_are_asked_for(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match="uint8 .* where floating-point numbers"):
        ArrayRows(tmp_path / "a.npy")
    rows = pickle.loads(pickle.dumps(ArrayRows(tmp_path / "a.npy", integers=True)))
    np.testing.assert_array_equal(rows.read(1, 3), array[1:])
    assert rows.dtype == np.uint8
