"""Features that other tools made become a store: every format, whatever is wrong with it, and however it is stopped."""

import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from feature_writers import (
    DIM,
    FORMATS,
    REGIONS,
    SIZE,
    make_regions,
    tsv_line,
    write_hdf5_array,
    write_npy_array,
    write_npy_folder,
    write_npz,
    write_tsv,
)

from openvse import pipeline
from openvse.errors import DataError, RecipeError, StoreError
from openvse.features.entries import FEATURE_FILES, FeatureEntry, ImageNames, Local, import_features
from openvse.features.store import FeatureStore
from tests.failures import Failures
from tests.naming import names, refusal


def assert_imported(path: Path, with_boxes: bool, prefix: str = "") -> None:
    """Compare a store with what was written."""
    store = FeatureStore(path)
    assert sorted(store.ids) == sorted(f"{prefix}{item}" for item in REGIONS)
    assert store.has_boxes == with_boxes
    for item, regions in REGIONS.items():
        position = store.positions([f"{prefix}{item}"])
        assert np.array_equal(store.gather(position).values[0].numpy(), regions.features)
        if with_boxes:
            expected = regions.boxes / np.array([*SIZE, *SIZE], np.float32)
            np.testing.assert_allclose(store.boxes(position)[0].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_store(tmp_path: Path, name: str) -> None:
    if "hdf5" in name:
        pytest.importorskip("h5py")
    write, with_boxes = FORMATS[name]
    source = write(tmp_path)
    report = import_features(source, tmp_path / "store", dtype="float32")
    assert (report.done, report.existing, report.failed) == (3, 0, [])
    prefix = "val/" if name == "hdf5 groups" else ""
    assert_imported(tmp_path / "store", with_boxes, prefix)
    again = import_features(source, tmp_path / "store", dtype="float32")
    assert (again.done, again.existing, again.failed) == (0, 3, [])
    assert_imported(tmp_path / "store", with_boxes, prefix)


def test_without_boxes_and_in_half_precision(tmp_path: Path) -> None:
    import_features(str(write_tsv(tmp_path)), str(tmp_path / "store"), boxes=False)
    store = FeatureStore(tmp_path / "store")
    assert not store.has_boxes
    half = REGIONS["42"].features.astype(np.float16).astype(np.float32)
    assert np.array_equal(store.gather(store.positions(["42"])).values[0].numpy(), half)


def test_names_are_matched_to_the_images_of_a_data_set(tmp_path: Path) -> None:
    image_ids = ["COCO_val2014_000000391895.jpg", "COCO_train2014_000000000042.jpg", "COCO_val2014_000000000001.jpg"]
    report = import_features(write_tsv(tmp_path), tmp_path / "store", image_ids=image_ids)
    assert FeatureStore(tmp_path / "store").ids == tuple(image_ids[:2])
    assert (report.done, report.unmatched) == (2, ["7"])
    with pytest.raises(DataError, match="3.*'391895'"):
        import_features(write_tsv(tmp_path), tmp_path / "other", image_ids=["a.jpg"])


def test_a_header_and_text_that_python_3_wrapped(tmp_path: Path) -> None:
    line = tsv_line("42", REGIONS["42"]).rstrip().split(b"\t")
    line[4:] = [b"b'" + cell + b"'" for cell in line[4:]]
    header = b"img_id\timg_w\timg_h\tnum_boxes\tboxes\tfeatures"
    (tmp_path / "a.tsv").write_bytes(header + b"\r\n" + b"\t".join(line) + b"\r\n\n")
    report = import_features(tmp_path / "a.tsv", tmp_path / "store", dtype="float32")
    assert (report.done, report.failed) == (1, [])
    store = FeatureStore(tmp_path / "store")
    assert np.array_equal(store.gather(np.array([0])).values[0].numpy(), REGIONS["42"].features)


def damaged_lines() -> Iterator[tuple[bytes, str]]:
    """Yield bad lines of a table, and what is said about each."""
    good = tsv_line("bad", make_regions(2, 5)).rstrip(b"\n").split(b"\t")

    def with_cell(number: int, cell: bytes) -> bytes:
        return b"\t".join([*good[:number], cell, *good[number + 1 :]]) + b"\n"

    for value in (np.nan, np.inf):
        regions = make_regions(2, 5)
        regions.features[1, 2] = value
        yield tsv_line("bad", regions), "NaN"
    regions = make_regions(2, 5)
    for value in (700, -20, np.nan):
        regions.boxes[0, 2] = value
        yield tsv_line("bad", regions), "boxes.*640 x 480"
    yield with_cell(5, good[5] + good[5]), r"\[2, 6\].*\[N, 3\]"
    yield with_cell(5, good[5][:-1]), "features.*base64"
    yield with_cell(5, good[5][:-8]), "features.* 18 .* 2 "
    yield with_cell(5, b""), "features.* 0 "
    yield with_cell(4, good[4][:16]), "boxes.* 12 .* 2 "
    yield with_cell(4, good[4][:32]), r"boxes.*\[2, 3\].*\[2, 4\]"
    yield with_cell(3, b"0"), "boxes"
    yield with_cell(3, b"two"), "num_boxes"
    yield with_cell(1, b"0"), ""
    yield b"\t".join(good[:4]) + b"\n", "4.*6"
    yield tsv_line("42", make_regions(1, 9)), ""


def test_what_is_wrong_with_a_line_is_named_and_skipped(tmp_path_factory: pytest.TempPathFactory) -> None:
    failures = Failures()
    for line, message in damaged_lines():
        with failures.of(line, message):
            tmp_path = tmp_path_factory.mktemp("case")
            lines = [tsv_line(item, regions) for item, regions in REGIONS.items()]
            (tmp_path / "a.tsv").write_bytes(b"".join([*lines[:2], line, *lines[2:]]))
            report = import_features(tmp_path / "a.tsv", tmp_path / "store", dtype="float32")
            ((place, reason),) = report.failed
            assert place.startswith("a.tsv, line 3 (") and "\n" not in reason
            assert re.search(message, reason), reason
            assert report.done == 3
            assert_imported(tmp_path / "store", with_boxes=True)
    assert not failures, failures


def test_a_bad_first_item_does_not_decide_the_width(tmp_path: Path) -> None:
    empty = np.zeros((0, 7), np.float32)
    np.save(write_npy_folder(tmp_path) / "0.npy", empty)
    report = import_features(tmp_path / "npy", tmp_path / "store")
    assert [place for place, _ in report.failed] == ["0.npy (0)"]
    assert FeatureStore(tmp_path / "store").dim == DIM


def test_bad_files_in_a_folder(tmp_path: Path) -> None:
    source = write_npz(tmp_path)
    whole = (source / "42.npz").read_bytes()
    (source / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (source / "empty.npz").write_bytes(b"")
    np.savez(source / "other.npz", boxes=np.zeros((1, 4)))
    np.savez(source / "pickled.npz", x=np.array([{"a": 1}], dtype=object))
    np.savez(source / "few.npz", x=np.ones((1, DIM)), bbox=np.zeros((2, 4)), num_bbox=2)
    np.savez(source / "words.npz", x=np.array([["a"]]))
    np.savez(source / "deep.npz", x=np.ones((2, 2, 2, 2)))
    np.savez(source / "turned.npz", x=np.ones((DIM, 2)), bbox=np.zeros((2, 4)))
    np.savez(source / "relative.npz", x=np.ones((1, DIM)), bbox=np.full((1, 4), 0.5))
    np.savez(source / "pixels.npz", x=np.ones((1, DIM)), bbox=np.full((1, 4), 50.0))
    np.savez(source / "no_boxes.npz", x=np.ones((1, DIM)))
    report = import_features(source, tmp_path / "store", dtype="float32")
    reasons = {place.split(".")[0]: reason for place, reason in report.failed}
    said = {"few": ("2 boxes", 1), "words": ("<U1",), "deep": ([2, 2, 2, 2],), "no_boxes": ("'no_boxes'",)}
    assert reasons.keys() == {"cut", "empty", "other", "pickled", "pixels", *said}
    assert all(names(reasons[name], *parts) for name, parts in said.items()), reasons
    store = FeatureStore(tmp_path / "store")
    assert {"turned", "relative"} < set(store.ids) and report.done == 5
    assert store.boxes(store.positions(["relative"])).unique().item() == 0.5


def test_padding_of_an_array_is_cut_off_and_its_ids_are_checked(tmp_path: Path) -> None:
    source = write_npy_array(tmp_path)
    (tmp_path / "dev_ids.txt").write_text("a\n\n")
    assert names(refusal(DataError, import_features, source, tmp_path / "store"), "2", "3", "dev_ims.npy")
    (tmp_path / "dev_ids.txt").unlink()
    assert names(refusal(DataError, import_features, source, tmp_path / "store"), "--ids", "FILE")
    (tmp_path / "my.txt").write_text("a\na\nb\n")
    report = import_features(source, tmp_path / "store", ids=tmp_path / "my.txt")
    assert [place for place, _ in report.failed] == ["dev_ims.npy, item 1 (a)"]
    assert FeatureStore(tmp_path / "store").lengths.tolist() == [2, 4]
    np.save(source, np.load(source)[:, 0])
    vectors = import_features(source, tmp_path / "vectors", ids=tmp_path / "my.txt")
    assert vectors.done == 2
    assert FeatureStore(tmp_path / "vectors").lengths.tolist() == [1, 1]


@pytest.mark.parametrize("array", [np.zeros((2, 2, 2, 2)), np.array(["a", "b"]), np.zeros((4, 3), order="F")])
def test_an_array_of_another_shape_is_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    assert names(refusal(DataError, import_features, tmp_path / "a.npy", tmp_path / "store"), "a.npy", "[n, N, C]")
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:100])
    assert names(refusal(DataError, import_features, tmp_path / "a.npy", tmp_path / "store"), "a.npy")


def test_hdf5_without_ids_or_cut_off(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    source = write_hdf5_array(tmp_path)
    with h5py.File(source, "a") as file:
        del file["ids"]
    assert names(refusal(DataError, import_features, source, tmp_path / "store"), "--ids", "FILE")
    (tmp_path / "my.txt").write_text("".join(f"{item}\n" for item in REGIONS))
    import_features(source, tmp_path / "store", ids=tmp_path / "my.txt", dtype="float32")
    assert_imported(tmp_path / "store", with_boxes=True)
    source.write_bytes(source.read_bytes()[:1000])
    assert names(refusal(DataError, import_features, source, tmp_path / "other"), "array.h5")


def test_hdf5_items_that_are_none(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["good"] = np.ones((2, DIM), np.float32)
        file["text"] = ["a", "b"]
        file["lost"] = h5py.SoftLink("/nowhere")
        file["part"] = h5py.ExternalLink("missing.h5", "/x")
    report = import_features(tmp_path / "a.h5", tmp_path / "store")
    assert report.done == 1
    assert {place for place, _ in report.failed} == {"a.h5, lost (lost)", "a.h5, part (part)", "a.h5, text (text)"}


def test_hdf5_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.h5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert names(refusal(DataError, import_features, tmp_path / "a.h5", tmp_path / "store"), "pip install")


def test_the_kind_is_found_out_or_asked_for(tmp_path: Path) -> None:
    assert names(refusal(DataError, import_features, tmp_path / "missing.tsv", tmp_path / "store"), "missing.tsv")
    (tmp_path / "both").mkdir()
    assert names(refusal(DataError, import_features, tmp_path / "both", tmp_path / "store"), "both")
    source = write_tsv(tmp_path / "both")
    np.save(tmp_path / "both" / "a.npy", np.ones((1, DIM)))
    assert names(refusal(DataError, import_features, tmp_path / "both", tmp_path / "store"), "--kind")
    assert import_features(tmp_path / "both", tmp_path / "store", kind="tsv").done == 3
    assert names(refusal(RecipeError, import_features, source, tmp_path / "store", kind="tvs"), "'tvs'", "'tsv'")
    assert names(refusal(DataError, import_features, tmp_path / "store", tmp_path / "other"), "store")
    renamed = source.rename(tmp_path / "features.txt")
    assert import_features(renamed, tmp_path / "store", kind="tsv").existing == 3
    assert names(refusal(DataError, import_features, renamed, tmp_path / "store", kind="tsv", ids=renamed), "--ids")


def test_a_kind_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_ones(source: Path, ids: Path | None = None) -> Iterator[FeatureEntry]:
        for line in source.read_text().splitlines():
            yield FeatureEntry(line, line, lambda: Local(np.ones((1, DIM), np.float32)))

    monkeypatch.setattr(FEATURE_FILES, "_parts", {**FEATURE_FILES._parts})
    FEATURE_FILES.add("ones", read_ones)
    (tmp_path / "a.txt").write_text("x\ny\n")
    assert import_features(tmp_path / "a.txt", tmp_path / "store", kind="ones").done == 2


@pytest.mark.parametrize("content", [b"", b"a\tb\tc\n", b"\n"])
def test_a_table_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tsv").write_bytes(content)
    assert names(refusal(DataError, import_features, tmp_path / "a.tsv", tmp_path / "store"), "a.tsv")
    assert not (tmp_path / "store").exists()


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openvse.features.entries.LONGEST_LINE", 100)
    (tmp_path / "a.tsv").write_bytes(b"x" * 1000)
    assert names(refusal(DataError, import_features, tmp_path / "a.tsv", tmp_path / "store"), "a.tsv", "1", "100")


def test_nothing_usable_says_why_and_leaves_no_store(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=1)
    assert names(refusal(DataError, import_features, tmp_path, tmp_path / "store"), "1", "a.npz")
    assert not (tmp_path / "store").exists()


def test_other_features_are_not_mixed_in(tmp_path: Path) -> None:
    source = write_tsv(tmp_path)
    import_features(source, tmp_path / "regions")
    moved = (tmp_path / "regions").rename(tmp_path / "moved")
    assert FeatureStore(moved).fingerprint == "imported:regions"
    assert import_features(source, moved).existing == 3
    with pytest.raises(StoreError, match="'imported:regions'.*'butd'"):
        import_features(source, moved, fingerprint="butd")
    with pytest.raises(StoreError, match="float16.*boxes.*float32.*boxes"):
        import_features(source, moved, dtype="float32")
    assert names(refusal(StoreError, import_features, source, moved, boxes=False), "float16", "boxes", "float16")


def _import_slowly(source: Path, store: Path) -> None:
    pipeline.KEEP_SECONDS = 0.0
    import_features(source, store, progress=lambda _: time.sleep(0.05))


@pytest.mark.medium
def test_killed_in_the_middle_it_goes_on(tmp_path: Path) -> None:
    regions = {str(number): make_regions(2, number) for number in range(60)}
    source = write_tsv(tmp_path, regions)
    import_features(source, tmp_path / "once" / "store")
    killed = tmp_path / "killed" / "store"
    process = multiprocessing.get_context("fork").Process(target=_import_slowly, args=(source, killed))
    process.start()
    deadline = time.monotonic() + 30
    while not ((killed / "store.json").exists() and len(FeatureStore(killed)) >= 10):
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    kept = len(FeatureStore(killed))
    assert 10 <= kept < 60
    report = import_features(source, killed)
    assert (report.existing, report.done) == (kept, 60 - kept)
    for name in ("features.npy", "boxes.npy", "lengths.npy", "ids.txt", "store.json"):
        assert (killed / name).read_bytes() == (tmp_path / "once" / "store" / name).read_bytes()


COCO = ["COCO_train2014_000000000042.jpg", "COCO_val2014_000000391895.jpg"]
FLICKR = ["1000092795.jpg", "102351840_323e3de834.jpg", "beach/0001.jpg", "dunes/0001.jpg"]


def test_a_name_means_one_image_or_none() -> None:
    failures = Failures()
    for name, image in [
        ("42", COCO[0]),
        ("000000391895", COCO[1]),
        ("COCO_val2014_000000391895", COCO[1]),
        ("val2014/COCO_val2014_000000391895.jpg", COCO[1]),
        ("COCO_val2014_000000391895.jpg.npy", COCO[1]),
        ("43", None),
        ("1000092795", FLICKR[0]),
        ("1000092795.jpg", FLICKR[0]),
        ("834", None),
        ("beach/0001.jpg", FLICKR[2]),
        ("0001.jpg", None),
        ("0001", None),
        ("1", None),
        ("", None),
    ]:
        with failures.of(name, image):
            assert ImageNames([*COCO, *FLICKR]).find(name) == image
    assert not failures, failures


def test_numbers_as_identifiers() -> None:
    known = ImageNames(["391895", "42"])
    assert known.find("COCO_val2014_000000391895.jpg") == "391895"
    assert known.find("000042") == "42"
