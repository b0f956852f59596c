"""Batches for evaluation: every item once."""

import numpy as np
import torch
from PIL import Image

from openvse.batches.pairs import FeatureImages, PixelImages, TokenTable, image_batches, text_batches
from toy_data import MeanColour, MemoryFeatures, make_tokens


def test_images_come_in_order():
    loader = FeatureImages(MemoryFeatures(7), [f"i{number}" for number in range(7)])
    batches = list(image_batches(loader, 3))
    assert [positions.tolist() for positions, _ in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    for positions, inputs in batches:
        assert isinstance(positions, np.ndarray)
        assert inputs.values.flatten().tolist() == positions.tolist()


def test_bad_images_are_missing_from_the_positions(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for path in (paths[0], paths[4], paths[5]):
        Image.new("RGB", (2, 2)).save(path)
    batches = list(image_batches(PixelImages(paths, MeanColour()), 2))
    assert [positions.tolist() for positions, _ in batches] == [[0], [4, 5]]
    assert [len(inputs) for _, inputs in batches] == [1, 2]


def test_texts_come_by_length_and_each_once():
    tokens = make_tokens(30)
    batches = list(text_batches(TokenTable(tokens), 8))
    positions = np.concatenate([chosen for chosen, _ in batches])
    assert sorted(positions.tolist()) == list(range(30))
    lengths = [len(tokens[position]) for position in positions]
    assert lengths == sorted(lengths)
    for chosen, inputs in batches:
        assert inputs.mask is not None
        assert inputs.mask.sum(dim=1).tolist() == [len(tokens[position]) for position in chosen]
        for row, position in enumerate(chosen.tolist()):
            assert torch.equal(inputs.values[row][inputs.mask[row]], tokens[position])


def test_sorting_leaves_little_padding():
    tokens = [torch.ones(length, dtype=torch.int64) for length in [1, 50] * 16]
    assert all(inputs.mask is not None and inputs.mask.all() for _, inputs in text_batches(TokenTable(tokens), 16))


def test_no_text():
    assert list(text_batches(TokenTable([]), 4)) == []
