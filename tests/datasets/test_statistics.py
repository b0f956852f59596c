"""Statistics of a data set: counts by hand on a few sentences."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from openvse.cli.app import app
from openvse.datasets import open_corpus
from openvse.datasets.check import data_statistics
from openvse.train_cli.commands import data  # noqa: F401 - registers the command

LINES = [
    {"file_name": "a.jpg", "captions": ["A dog runs.", "two dogs; a CAT"], "split": "train"},
    {"file_name": "b.jpg", "captions": ["a dog runs."], "split": "train"},
    {"file_name": "c.jpg", "captions": ["犬 and über"], "split": "dev"},
]


def write_data(folder: Path) -> Path:
    path = folder / "metadata.jsonl"  # the images are not there
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_items_sentences_words_and_vocabulary_are_counted(tmp_path: Path) -> None:
    corpus = open_corpus(write_data(tmp_path), require_images=False, merge_captions=False)
    train, validation, whole = data_statistics(corpus).to_json()
    assert train == {
        "split": "train",
        "items": 2,
        "sentences": 3,
        "per item": 1.5,
        "words": 10,
        "per sentence": 10 / 3,
        "longest": 4,
        "vocabulary": 6,  # a, dog, runs, two, dogs, cat
    }
    assert (validation["split"], validation["vocabulary"]) == ("validation", 3)
    assert (whole["split"], whole["items"], whole["sentences"], whole["vocabulary"]) == ("all", 3, 4, 9)


def test_a_check_counts_data_whose_images_are_missing(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["data", "check", str(write_data(tmp_path)), "--json"])
    assert result.exit_code == 1, result.output
    assert (
        json.loads(result.stdout)["result"]["splits"]
        == data_statistics(
            open_corpus(tmp_path / "metadata.jsonl", require_images=False, merge_captions=False)
        ).to_json()
    )
