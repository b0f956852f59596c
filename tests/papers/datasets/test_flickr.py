"""Flickr8k and Flickr30k in every layout in which they are found, and the check of a copy."""

import json
from pathlib import Path

import pytest

from openvse.errors import DataError
from openvse_papers.datasets.captioned import FLICKR8K_LAYOUT, FLICKR30K_LAYOUT, FlickrLayout
from tests.naming import names, refusal

SPLIT_OF = {"a.jpg": "train", "b.jpg": "dev", "c.jpg": "test", "d.jpg": ""}
SENTENCES = {name: [f"{name[0]} caption {number} ." for number in range(5)] for name in SPLIT_OF}


def fitting(root: Path) -> FlickrLayout | None:
    """Return the layout that a folder is detected as."""
    return next((layout for layout in (FLICKR8K_LAYOUT, FLICKR30K_LAYOUT) if layout.fits(root)), None)


def pictures(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in SPLIT_OF:
        (folder / name).touch()


def token_lines() -> str:
    return "\n".join(f"{name}#{i}\t{text}" for name, texts in SENTENCES.items() for i, text in enumerate(texts))


def split_list(name: str) -> str:
    return "\n".join(image for image, split in SPLIT_OF.items() if split == name) + "\n"


def official(root: Path) -> None:
    pictures(root / "Flicker8k_Dataset")
    text = root / "Flickr8k_text"
    text.mkdir()
    (text / "Flickr8k.token.txt").write_text(token_lines())
    for name in ("train", "dev", "test"):
        (text / f"Flickr_8k.{name}Images.txt").write_text(split_list(name))


def unpacked_flat(root: Path) -> None:
    """As Flickr8k_text.zip unpacks, which has no folder inside."""
    official(root)
    for path in (root / "Flickr8k_text").iterdir():
        path.rename(root / path.name)


def compact(root: Path) -> None:
    pictures(root / "images")
    (root / "captions.txt").write_text(token_lines())
    (root / "splits").mkdir()
    for name in ("train", "dev", "test"):
        (root / "splits" / f"{name}.txt").write_text(split_list(name))


def karpathy(root: Path, name: str = "dataset_flickr8k.json", folder: str = "images") -> None:
    pictures(root / folder)
    names = {"dev": "val", "": "restval"}
    images = [
        {
            "filename": image,
            "split": names.get(split, split),
            "sentences": [{"raw": text, "tokens": text.split()} for text in SENTENCES[image]],
        }
        for image, split in SPLIT_OF.items()
    ]
    (root / name).write_text(json.dumps({"images": images, "dataset": "flickr8k"}))


@pytest.mark.parametrize("layout", [official, unpacked_flat, compact])
def test_layouts_with_split_lists(tmp_path, layout):
    layout(tmp_path)
    assert fitting(tmp_path) == FLICKR8K_LAYOUT
    corpus = FLICKR8K_LAYOUT.open(tmp_path)
    assert corpus.name == "flickr8k" and corpus.problems == ()
    assert corpus.image_ids == tuple(SPLIT_OF)
    assert corpus.splits == ("train", "validation", "test", "")
    assert corpus.split("dev").captions == tuple(SENTENCES["b.jpg"])
    assert len(corpus.captions) == 20
    assert all(path.is_file() for path in corpus.image_paths)


def test_kaggle_table_has_no_splits(tmp_path):
    pictures(tmp_path / "Images")
    rows = "".join(f'{name},"{text}, comma"\n' for name, texts in SENTENCES.items() for text in texts)
    (tmp_path / "captions.txt").write_text("image,caption\n" + rows)
    corpus = FLICKR8K_LAYOUT.open(tmp_path)
    assert corpus.captions[5] == "b caption 0 ., comma"
    assert corpus.splits == ("",) * 4
    assert len(corpus.split("train")) == 3


def test_the_results_of_kaggle(tmp_path, caplog):
    pictures(tmp_path / "flickr30k_images")
    rows = [f"{name}| {n}| {text}" for name, texts in SENTENCES.items() for n, text in enumerate(texts)]
    rows[4] = rows[4].replace("| 4| ", "| 4   ")  # one row of the file is like this
    (tmp_path / "results.csv").write_text("\n".join(["image_name| comment_number| comment", *rows]))
    assert fitting(tmp_path) == FLICKR30K_LAYOUT
    corpus = FLICKR30K_LAYOUT.open(tmp_path)
    assert corpus.captions == tuple(text for name in SENTENCES for text in SENTENCES[name])
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "line 6" in caplog.text
    (tmp_path / "results.csv").write_text("image,caption\na.jpg,of an experiment\n")
    assert not FLICKR30K_LAYOUT.fits(tmp_path)


def test_karpathy(tmp_path):
    karpathy(tmp_path)
    corpus = FLICKR8K_LAYOUT.open(tmp_path)
    assert corpus.splits == ("train", "validation", "test", "train")
    assert corpus.split("test").captions == tuple(SENTENCES["c.jpg"])


def test_flickr30k_token_file_and_karpathy(tmp_path):
    pictures(tmp_path / "flickr30k-images")
    (tmp_path / "results_20130124.token").write_text(token_lines())
    assert fitting(tmp_path) == FLICKR30K_LAYOUT
    corpus = FLICKR30K_LAYOUT.open(tmp_path)
    assert (corpus.name, corpus.splits) == ("flickr30k", ("",) * 4)
    other = tmp_path / "k"
    karpathy(other, "dataset_flickr30k.json", "flickr30k-images")
    assert fitting(other) == FLICKR30K_LAYOUT
    assert FLICKR30K_LAYOUT.open(other).splits[1] == "validation"


def test_features_without_pictures(tmp_path):
    compact(tmp_path)
    for path in (tmp_path / "images").iterdir():
        path.unlink()
    (tmp_path / "images").rmdir()
    assert fitting(tmp_path) is None
    assert len(FLICKR8K_LAYOUT.open(tmp_path, require_images=False)) == 4
    assert names(refusal(DataError, FLICKR8K_LAYOUT.open, tmp_path), "Flicker8k_Dataset")


def test_a_token_file_alone_tells_the_data_set(tmp_path):
    (tmp_path / "results_20130124.token").write_text(token_lines())
    assert fitting(tmp_path) == FLICKR30K_LAYOUT


def test_a_token_file_with_more_columns_is_refused(tmp_path):
    """A third column would become a part of the caption."""
    lines = token_lines().splitlines()
    lines[1] += "\t0.93"
    (tmp_path / "results_20130124.token").write_text("\n".join(lines))
    refused = refusal(DataError, FLICKR30K_LAYOUT.open, tmp_path, require_images=False)
    assert names(refused, "results_20130124.token", 2)


def test_a_tab_at_the_end_of_a_line_is_no_column(tmp_path):
    lines = token_lines().splitlines()
    lines[0] = lines[0].partition("\t")[0] + "\t"  # an empty caption
    lines[1] += "\t"
    (tmp_path / "results_20130124.token").write_text("\n".join(lines))
    corpus = FLICKR30K_LAYOUT.open(tmp_path, require_images=False)
    assert len(corpus.captions) == len(lines) - 1
    assert corpus.problems


def test_an_image_in_two_lists(tmp_path):
    compact(tmp_path)
    with (tmp_path / "splits" / "train.txt").open("a") as file:
        file.write("c.jpg\nc.jpg\n")
    corpus = FLICKR8K_LAYOUT.open(tmp_path)
    assert corpus.splits == ("train", "validation", "test", "")
    assert corpus.problems[0].startswith("leakage: 1 ")


def test_what_is_missing_or_damaged(tmp_path):
    pictures(tmp_path / "images")
    assert names(refusal(DataError, FLICKR8K_LAYOUT.open, tmp_path), "dataset_flickr8k.json", "captions.txt")
    (tmp_path / "captions.txt").write_text("a.jpg#0\tfine\na.jpg#1 no tab\n")
    assert names(refusal(DataError, FLICKR8K_LAYOUT.open, tmp_path), 2, "name.jpg", 0)
    for content in ('{"images": [{"filename": "a.jpg"}]}', "not json", "[]"):
        (tmp_path / "dataset_flickr8k.json").write_text(content)
        assert names(refusal(DataError, FLICKR8K_LAYOUT.open, tmp_path), "dataset_flickr8k.json")


def test_a_caption_of_a_picture_that_is_not_there(tmp_path):
    compact(tmp_path)
    with (tmp_path / "captions.txt").open("a") as file:
        file.write("\n2258277193_586949ec62.jpg.1#0\tpeople waiting\n")
    corpus = FLICKR8K_LAYOUT.open(tmp_path)
    assert len(corpus) == 4
    assert names(corpus.problems[0], 1, "2258277193_586949ec62.jpg.1")
