"""The precomputed layout, in each of the shapes in which it is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from array_files import five, random_features, write_mapping, write_split
from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.datasets.check import check_data
from openvse.errors import DataError
from openvse_papers.datasets.captioned import open_precomputed
from tests.naming import names, refusal

SPLITS = {"train": 6, "dev": 3, "test": 2}


def write_all(folder: Path, repeats: int = 1) -> dict[str, np.ndarray]:
    features = {name: random_features(count, seed) for seed, (name, count) in enumerate(SPLITS.items())}
    for name, array in features.items():
        write_split(folder, name, array, five(name, len(array)), repeats=repeats)
    return features


def gathered(corpus: Corpus) -> np.ndarray:
    assert corpus.features is not None
    return corpus.features.gather(corpus.features.positions(corpus.image_ids)).values.numpy()


@pytest.mark.parametrize("repeats", [1, 5])
@pytest.mark.parametrize("below", [".", "precomp"])
def test_one_row_an_image_or_one_a_caption(tmp_path, repeats, below):
    features = write_all(tmp_path / below, repeats)
    corpus = open_corpus(tmp_path)
    assert corpus.problems == () and corpus.name == tmp_path.name
    assert [corpus.splits.count(split) for split in ("train", "validation", "test")] == [6, 3, 2]
    for split, name in (("train", "train"), ("validation", "dev"), ("test", "test")):
        part = corpus.split(split)
        assert part.captions == tuple(line for texts in five(name, len(part)) for line in texts)
        np.testing.assert_array_equal(part.relevance.images, np.arange(len(part)).repeat(5))
        np.testing.assert_array_equal(gathered(part), features[name])


def test_testall_goes_before_test(tmp_path):
    write_all(tmp_path)
    write_split(tmp_path, "testall", random_features(7, 9), five("all", 7))
    assert open_precomputed(tmp_path).split("test").captions[0] == "all 0 caption 0"


def test_one_split_alone(tmp_path):
    write_split(tmp_path, "test", random_features(2), five("test", 2))
    assert set(open_precomputed(tmp_path).splits) == {"test"}


@pytest.mark.parametrize("times", [1, 5])
def test_identifiers_and_file_names(tmp_path, times):
    """Identifiers stand once an image, or once a caption; a mapping makes file names of them."""
    folder = tmp_path / "coco" / "precomp"
    ids = {"train": ["9", "30", "522418"], "test": ["391895", "42"]}
    for seed, (name, own) in enumerate(ids.items()):
        array = random_features(len(own), seed)
        write_split(folder, name, array, five(name, len(own)), ids=[item for item in own for _ in range(times)])
    bare = open_precomputed(folder)
    assert bare.image_ids == ("30", "522418", "9", "391895", "42")  # training sorted, the test as it stands
    parts = {"9": "train2014", "30": "train2014"}
    names = {item: f"COCO_val2014_{int(item):012d}.jpg" for item in (*ids["train"], *ids["test"])}
    write_mapping(
        folder.parent / "id_mapping.json",
        {item: f"{parts.get(item, 'val2014')}/{name}" for item, name in names.items()},
    )
    (folder.parent / "images" / "val2014").mkdir(parents=True)
    named = open_precomputed(folder.parent)
    assert named.image_ids == tuple(names[item] for item in ("9", "30", "522418", "391895", "42"))
    assert named.image_paths[-1] == folder.parent / "images" / "val2014" / names["42"]
    place = named.image_ids.index(names["522418"])
    np.testing.assert_array_equal(gathered(named)[place], random_features(3, 0)[2])


def test_equal_images_at_the_start_are_no_repeats_where_captions_outnumber_rows(tmp_path):
    array = random_features(4)
    array[1] = array[0]
    write_split(tmp_path, "train", array, five("train", 4))
    assert len(open_precomputed(tmp_path)) == 4


def test_one_caption_an_image(tmp_path):
    write_split(tmp_path, "train", random_features(4), [["one"], ["two"], ["three"], ["four"]])
    assert open_precomputed(tmp_path).captions == ("one", "two", "three", "four")


def test_captions_with_odd_characters_keep_their_places(tmp_path):
    captions = five("train", 3)
    captions[1] = ["", "später", "two\u2028lines", "a  b ", "x"]
    write_split(tmp_path, "train", random_features(3), captions)
    corpus = open_precomputed(tmp_path)
    assert corpus.problems == ("skipped 1 image(s) with an empty caption (first: train/000001)",)
    assert len(corpus.captions) == 14
    assert corpus.captions[9] == "train 2 caption 0"


def test_an_image_in_two_splits_stays_in_the_test(tmp_path):
    write_split(tmp_path, "train", random_features(3, 1), five("train", 3), ids=["a", "b", "c"])
    write_split(tmp_path, "test", random_features(2, 2), five("test", 2), ids=["b", "d"])
    corpus = open_precomputed(tmp_path)
    assert corpus.image_ids == ("a", "c", "b", "d")
    assert corpus.problems[0].startswith("leakage: 1 image(s)") and corpus.problems[0].endswith("(first: b)")
    np.testing.assert_array_equal(gathered(corpus)[2], random_features(2, 2)[0])


def spoil_counts(folder: Path) -> None:
    with (folder / "dev_caps.txt").open("a") as file:
        file.write("one more\n")


def spoil_ids(folder: Path) -> None:
    (folder / "train_ids.txt").write_text("".join(f"{number}\n" for number in range(30)))


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: (folder / "dev_ims.npy").unlink(), ["dev_ims.npy"]),
        (lambda folder: (folder / "dev_caps.txt").unlink(), ["dev_caps.txt"]),
        (spoil_counts, ["dev_ims.npy", 3, "dev_caps.txt", 16]),
        (lambda folder: (folder / "test_caps.txt").write_text(""), ["test_caps.txt", 0]),
        (lambda folder: np.save(folder / "test_ims.npy", random_features(0)), ["test_ims.npy", 0]),
        (lambda folder: np.save(folder / "test_ims.npy", random_features(2, dim=5)), [4, 5]),
        (lambda folder: (folder / "test_ids.txt").write_text("1\n2\n3\n"), ["test_ids.txt", 3, 2]),
        (spoil_ids, ["train_ids.txt", 1, 5]),
        (lambda folder: (folder / "test_ids.txt").write_text("7\n7\n"), ["'7'"]),
        (lambda folder: (folder / "id_mapping.json").write_text("[1]"), ["id_mapping.json"]),
    ],
)
def test_faults_end_in_one_line(tmp_path, spoil, named):
    write_all(tmp_path)
    spoil(tmp_path)
    assert names(refusal(DataError, open_precomputed, tmp_path), *named)


def test_nothing_there(tmp_path):
    assert names(refusal(DataError, open_precomputed, tmp_path), "train_ims.npy")


def test_the_check_reads_all_features(tmp_path):
    features = write_all(tmp_path)
    features["dev"][1, 2, 3] = np.nan
    features["test"][0] = features["train"][4]
    for name in ("dev", "test"):
        np.save(tmp_path / f"{name}_ims.npy", features[name])
    lines = [f"{finding.mark} {finding.text}" for finding in check_data(f"precomputed:{tmp_path}")]
    assert "ok 11 items, 55 captions; splits 6 / 3 / 2, in no split 0" in lines
    assert any(line.startswith("ok features: train_ims.npy [6, 3, 4], 1 row(s) an image; dev") for line in lines)
    wrong = [line for line in lines if line.startswith("WRONG")]
    assert [line.split(" (first: ")[1].split(" in ")[0] for line in wrong] == ["validation/000001", "test/000000"]
    assert "not finite" in wrong[0] and "leakage" in wrong[1]
    assert all(finding.ok for finding in check_data(f"precomputed:{tmp_path}", quick=True))
