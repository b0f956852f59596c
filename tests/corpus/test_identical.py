"""Identical captions of different images in data of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from openvse.batches.loaders import FeatureImages, TokenTable
from openvse.batches.pairs import BatchKey, PairDataset
from openvse.corpus import Corpus
from openvse.corpus.corpus import SharedTexts, merge_identical
from openvse.datasets import open_corpus
from openvse.datasets.check import check_data
from openvse.evaluation.report import evaluate_sets
from openvse.functional import set_max_scores
from openvse.types import EmbeddingSet
from toy_data import MemoryFeatures, make_tokens

CAPTIONS = [["a dog", "it runs"], ["A  Dog", "a dog"], ["a cat"], ["a dog "]]


def write_folder(root: Path) -> Path:
    root.mkdir()
    lines = [{"file_name": f"{number}.jpg", "captions": given} for number, given in enumerate(CAPTIONS)]
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return root


def write_table(root: Path) -> Path:
    root.mkdir()
    rows = [f"{number}.jpg,{caption}" for number, given in enumerate(CAPTIONS) for caption in given]
    (root / "mine.csv").write_text("\n".join(["file_name,caption", *rows]))
    return root / "mine.csv"


def pairs_of(corpus: Corpus) -> set[tuple[int, str]]:
    relevance = corpus.relevance
    pairs = zip(relevance.images.tolist(), relevance.texts.tolist(), strict=True)
    return {(image, corpus.captions[text]) for image, text in pairs}


@pytest.mark.parametrize("write", [write_folder, write_table])
def test_they_are_one_text_in_own_data(write, tmp_path: Path) -> None:
    source = write(tmp_path / "mine")
    corpus = open_corpus(source, require_images=False)
    assert corpus.captions == ("a dog", "it runs", "a cat")
    assert pairs_of(corpus) == {(0, "a dog"), (0, "it runs"), (1, "a dog"), (2, "a cat"), (3, "a dog")}
    assert len(corpus.relevance.images) == 5 and corpus.relevance.num_texts == 3
    assert SharedTexts.of(corpus.relevance) == SharedTexts(num_texts=1, num_images=3)
    before = open_corpus(source, require_images=False, merge_captions=False)
    assert before.captions == ("a dog", "it runs", "A Dog", "a dog", "a cat", "a dog")
    assert SharedTexts.of(before.relevance).describe() == ""


def test_they_are_positives_of_each_other_in_a_batch(tmp_path: Path) -> None:
    corpus = open_corpus(write_folder(tmp_path / "mine"), require_images=False)
    images = FeatureImages(MemoryFeatures(len(corpus)), [f"i{number}" for number in range(4)])
    dataset = PairDataset(corpus, images, TokenTable(make_tokens(len(corpus.captions))))
    batch = dataset[BatchKey(np.arange(5))]
    assert batch.positives.int().tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]]


def test_the_report_and_the_check_count_them(tmp_path: Path, monkeypatch) -> None:
    root = write_folder(tmp_path / "mine")
    corpus = open_corpus(root, require_images=False)
    rng = np.random.default_rng(0)

    def embedded(count: int) -> EmbeddingSet:
        vectors = torch.from_numpy(rng.normal(size=(count, 1, 4)))
        return EmbeddingSet(vectors, torch.ones(count, 1, dtype=torch.bool))

    report = evaluate_sets(embedded(4), embedded(3), corpus.relevance, set_max_scores, resamples=0)
    line = "identical captions: 1, of 3 images. Each counts as relevant to all images that have it"
    assert report.remarks.shared == SharedTexts(1, 3) and f"- {line}\n" in report.to_markdown()
    assert json.loads(report.to_json())["remarks"]["shared"] == {"num_texts": 1, "num_images": 3}
    for number in range(4):
        (root / f"{number}.jpg").write_text(f"image {number}")
    notes = [finding.text for finding in check_data(root, quick=True) if finding.mark == "note"]
    assert notes == ["3 of 4 images share a caption with another one (1 captions)"]


def test_the_check_counts_very_long_captions(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    for number, caption in enumerate(["a dog " * 150, "a dog", "cat " * 256]):
        (root / f"{number}.jpg").write_text(f"image {number}")
        with (root / "metadata.jsonl").open("a") as lines:
            lines.write(json.dumps({"file_name": f"{number}.jpg", "text": caption}) + "\n")
    (note,) = [finding.text for finding in check_data(root, quick=True) if finding.mark == "note"]
    assert note.startswith(
        "1 caption(s) have more than 256 words (the longest 300): text encoders read only the beginning"
    )


def test_nothing_to_merge_changes_nothing(tmp_path: Path) -> None:
    corpus = open_corpus(write_folder(tmp_path / "mine"), require_images=False)
    assert merge_identical(corpus) is corpus
