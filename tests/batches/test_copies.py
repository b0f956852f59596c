"""Copies of each image and caption of a batch, each with its own augmentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from batches.test_pairs import dataset_of
from openvse.batches.pairs import BatchKey
from openvse.retrieval.training import gather_batch
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.types import EmbeddingSet
from tests.tiny import Recorder, tiny_tree, write_tiny_corpus
from toy_data import make_corpus


def test_all_copies_of_a_pair_belong_together() -> None:
    # Text 2 belongs to two images.
    corpus = make_corpus([(0, 0), (0, 1), (1, 2), (2, 2), (2, 3)], num_images=3, num_texts=4)
    one = dataset_of(corpus)[BatchKey(np.arange(5))]
    two = one.copied(2)
    assert one.copied(1) is one
    for before, after in ((one.images, two.images), (one.texts, two.texts)):
        assert torch.equal(after.values[::2], before.values) and torch.equal(after.values[1::2], before.values)
        assert before.mask is not None and after.mask is not None
        assert torch.equal(after.mask[::2], before.mask) and torch.equal(after.mask[1::2], before.mask)
    for image in range(len(two.positives)):
        for text in range(two.positives.shape[1]):
            assert two.positives[image, text] == one.positives[image // 2, text // 2]
    # What several processes would make of it are the same pairs.
    of_image = two.image_keys.unsqueeze(1) == two.partners[:, 0]
    of_text = two.partners[:, 1].unsqueeze(1) == torch.arange(len(two.texts))
    assert torch.equal((of_image.long() @ of_text.long()) > 0, two.positives)
    assert (of_image.long() @ of_text.long()).max() == 1


@pytest.mark.medium
def test_a_run_embeds_every_copy(tmp_path: Path, monkeypatch) -> None:
    seen: list[tuple[int, int]] = []

    def gathered(images: EmbeddingSet, texts: EmbeddingSet, *rest: torch.Tensor) -> object:
        seen.append((len(images), len(texts)))
        apart = images.vectors[::2] - images.vectors[1::2]
        assert apart.abs().max() > 0, "each copy has its own drops"
        return gather_batch(images, texts, *rest)

    monkeypatch.setattr("openvse.retrieval.training.gather_batch", gathered)
    write_tiny_corpus(tmp_path)
    tree = tiny_tree(tmp_path, batch_size=8)
    tree["data"]["copies"] = 2
    tree["objective"]["ranking"]["positives"] = "hardest"
    tree["image"]["encoder"]["augmentation"] = {"name": "region", "rate": 0.5}
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=Recorder())
    assert seen and all(texts == 16 and images <= 16 for images, texts in seen)
