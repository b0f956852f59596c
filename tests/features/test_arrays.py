"""Arrays on disk: any rows without the others, repeats of an image, and the features that a data set brings along."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from array_files import random_features
from openvse.errors import DataError, StoreError
from openvse.features.arrays import ArrayFeatures, ArrayPart, ArrayRows, uneven_groups
from openvse.types import FeatureSource
from tests.naming import names, refusal


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
    assert names(refusal(DataError, lambda: ArrayRows(tmp_path / "a.npy").repeats()), "5", "29")
    array[17] += 1
    np.save(tmp_path / "a.npy", array)
    assert names(refusal(DataError, lambda: ArrayRows(tmp_path / "a.npy").repeats()), "5", "15", "19")


def test_uneven_groups():
    rows = np.repeat(random_features(4), 3, axis=0)
    assert uneven_groups(rows, 3).tolist() == []
    rows[4, 0, 0] += 1
    rows[11, 2, 3] = np.nan
    assert uneven_groups(rows, 3).tolist() == [1, 3]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (np.arange(6).reshape(1, 2, 3), ["int64", 1, 2, 3]),
        (np.ones((2, 3, 4, 5)), ["float64"]),
        (np.asfortranarray(random_features(3)), ["C"]),
        (np.array([{"a": 1}], dtype=object), []),
        (b"PK\x03\x04 an archive", []),
        (b"", []),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content, named):
    path = tmp_path / "a.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    assert names(refusal(DataError, ArrayRows, path), path, *named)


def test_a_file_that_was_cut_off(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, random_features(50))
    whole = path.read_bytes()
    rows = ArrayRows(path)
    path.write_bytes(whole[:-100])
    assert names(refusal(DataError, rows.read, 49), "a.npy")
    assert names(refusal(DataError, ArrayRows, path), "a.npy")
    assert names(refusal(DataError, ArrayRows, tmp_path / "none.npy"), "none.npy")


def test_whole_numbers_are_read_where_they_are_asked_for(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    np.save(tmp_path / "a.npy", array)
    assert names(refusal(DataError, ArrayRows, tmp_path / "a.npy"), "uint8")
    rows = pickle.loads(pickle.dumps(ArrayRows(tmp_path / "a.npy", integers=True)))
    np.testing.assert_array_equal(rows.read(1, 3), array[1:])
    assert rows.dtype == np.uint8


def part(folder: Path, split: str, array: np.ndarray, ids: str, repeats: int = 1) -> ArrayPart:
    path = folder / f"{split}_ims.npy"
    np.save(path, np.repeat(array, repeats, axis=0))
    return ArrayPart(split, ArrayRows(path), tuple(ids), repeats)


def test_batches_over_two_files(tmp_path):
    train, test = random_features(3, 1), random_features(2, 2, num_local=5).astype(np.float16)
    source = ArrayFeatures([part(tmp_path, "train", train, "abc", 5), part(tmp_path, "test", test, "de")])
    assert isinstance(source, FeatureSource)
    assert (len(source), source.dim) == (5, 4)
    assert "c" in source and "x" not in source
    for given in (source, pickle.loads(pickle.dumps(source))):
        inputs = given.gather(given.positions(["e", "b", "e"]))
        assert inputs.mask is not None
        assert inputs.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2, [True] * 5]
        np.testing.assert_array_equal(inputs.values[0], test[1].astype(np.float32))
        np.testing.assert_array_equal(inputs.values[1, :3], train[1])
        assert not inputs.values[1, 3:].any()


def test_zeros_at_the_end_are_padding(tmp_path):
    array = random_features(3, num_local=6)
    array[0, 4:], array[1, 2], array[2] = 0, 0, 0
    source = ArrayFeatures([part(tmp_path, "train", array, "abc")])
    inputs = source.gather(np.array([0, 2]))
    assert inputs.mask is not None
    assert inputs.values.shape == (2, 4, 4) and inputs.mask.sum(dim=1).tolist() == [4, 1]
    assert source.gather(np.array([1])).mask.all()  # zeros between others are a feature
    assert source.gather(np.array([], dtype=np.int64)).values.shape == (0, 0, 4)


def test_an_image_in_two_files_is_taken_from_the_last(tmp_path):
    train, test = random_features(2, 1), random_features(2, 2)
    source = ArrayFeatures([part(tmp_path, "train", train, "ab"), part(tmp_path, "test", test, "bc")])
    assert len(source) == 3
    np.testing.assert_array_equal(source.gather(source.positions(["b"])).values[0], test[0])


def test_unknown_items_and_widths_are_refused(tmp_path):
    train = part(tmp_path, "train", random_features(2), "ab")
    assert names(refusal(StoreError, lambda: ArrayFeatures([train]).positions(["a", "x", "y"])), "2", "3", "'x'", "'y'")
    with pytest.raises(DataError, match="train_ims.npy.*4.*test_ims.npy.*6"):
        ArrayFeatures([train, part(tmp_path, "test", random_features(1, dim=6), "c")])


@pytest.mark.medium
def test_memory_is_that_of_the_batch(tmp_path):
    """A sparse file of 40 GB is opened and read in the middle."""
    path = tmp_path / "train_ims.npy"
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(136_000, 36, 2048))
    array[[70_000, 135_999], -1, -1] = 1
    del array
    source = ArrayFeatures([ArrayPart("train", ArrayRows(path), tuple(map(str, range(136_000))))])
    assert source.gather(source.positions(["135999", "70000"])).values.shape == (2, 36, 2048)


def test_sound_features_have_no_faults(tmp_path):
    source = ArrayFeatures(
        [
            part(tmp_path, "train", random_features(9, 1), "abcdefghi", 5),
            part(tmp_path, "test", random_features(2, 2), "xy"),
        ]
    )
    assert list(source.faults()) == []


def test_faults_are_counted_and_the_first_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("openvse.features.arrays._BLOCK_BYTES", 500)  # several blocks
    train, test = random_features(8, 1), random_features(3, 2)
    train[5, 1, 2], train[6, 0, 0] = np.nan, np.inf
    test[1] = train[3]
    parts = [part(tmp_path, "train", train, "abcdefgh", 2), part(tmp_path, "test", test, "xyz")]
    rows = np.load(tmp_path / "train_ims.npy")
    rows[9] += 1  # the second row of image e
    np.save(tmp_path / "train_ims.npy", rows)
    one, other = (tmp_path / f"{split}_ims.npy" for split in ("train", "test"))
    told = [("features", 2, "f in", one), ("features", 1, 2, "e in", one), ("leakage", 1, "test", "y in", other)]
    for line, said in zip(ArrayFeatures(parts).faults(), told, strict=True):
        assert names(line, *said)
