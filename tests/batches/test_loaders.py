"""Loaders of images and texts: features from a store, images from files, and the table of token ids."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from openvse.backbones.base import Precomputed
from openvse.batches.pairs import (
    FeatureImages,
    ImageLoader,
    PixelImages,
    RandomView,
    TokenTable,
    image_loader,
    own_features,
    with_features,
)
from openvse.errors import BadImageError, DataError, ModelError, StoreError
from openvse.functional import pad
from tests.naming import names, refusal
from toy_data import MeanColour, MemoryFeatures, five_captions, make_corpus


@pytest.fixture
def paths(tmp_path):
    """Ten images of one grey each: 0, 10, 20, ..."""
    found = [tmp_path / f"i{number}.png" for number in range(10)]
    for number, path in enumerate(found):
        Image.new("RGB", (4, 4), (10 * number,) * 3).save(path)
    return found


def reds(inputs):
    return inputs.values[:, 0, 0, 0].tolist()


def test_stored_images_are_gathered_at_once_in_the_order_asked():
    source = MemoryFeatures(6)
    loader = FeatureImages(source, ["i4", "i0", "i2"])
    inputs, kept = loader.load(np.array([2, 0]))
    assert len(loader) == 3 and source.reads == 1
    assert inputs.values.flatten().tolist() == [2.0, 4.0]
    assert kept.tolist() == [True, True]
    refusal(StoreError, FeatureImages, source, ["i4", "unknown"])


def test_features_that_are_not_finite_are_reported_once_and_left_out(caplog):
    source = MemoryFeatures(6)
    whole = source.gather

    def gather(positions):
        inputs = whole(positions)
        inputs.values[(positions == 4 + 3) | (positions == 5 + 3)] = torch.nan
        return inputs

    source.gather = gather
    loader = FeatureImages(source, [f"i{number}" for number in range(6)])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            inputs, kept = loader.load(np.array([5, 1, 2]))
    assert inputs.values.flatten().tolist() == [1.0, 2.0] and kept.tolist() == [False, True, True]
    assert inputs.mask is not None and len(inputs.mask) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "skipped i5: its features hold numbers that are not finite"
    ]
    assert names(refusal(BadImageError, loader.load, np.array([4, 5])), 2, "i4")


def test_a_data_sets_own_features_are_for_encoders_without_a_backbone(paths):
    bare = make_corpus([(0, 0), (1, 1)], 2, 2)
    corpus = replace(bare, features=MemoryFeatures(2))
    stored = Precomputed(feature_dim=1)
    assert names(refusal(ModelError, own_features, bare, stored), "data.features=STORE")
    assert own_features(corpus, stored) is corpus.features
    assert corpus.split("train").features is corpus.features
    refused = refusal(ModelError, own_features, corpus, Precomputed(feature_dim=3))
    assert names(refused, 1, 3, "image.encoder.feature_dim=1")
    assert names(refusal(DataError, own_features, corpus, MeanColour()), "1 wide", "i0.png", "feature_dim", 1)
    assert own_features(replace(corpus, image_paths=tuple(paths[:2])), MeanColour()) is None


def test_pixel_images_decode_in_the_order_asked(paths):
    loader = PixelImages(paths, MeanColour())
    inputs, kept = loader.load(np.array([3, 1, 7]))
    assert inputs.mask is None and inputs.values.shape == (3, 3, 1, 1)
    assert reds(inputs) == [30.0, 10.0, 70.0]
    assert kept.all() and len(loader) == 10


def test_a_bad_file_is_reported_once_and_left_out(paths, caplog):
    paths[1].write_bytes(b"no image")
    loader = PixelImages(paths, MeanColour())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            inputs, kept = loader.load(np.array([0, 1, 2]))
    assert reds(inputs) == [0.0, 20.0]
    assert kept.tolist() == [True, False, True]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [f"skipped {paths[1]}: it is not an image we read"]


def test_a_batch_of_nothing_but_bad_files(paths):
    for path in paths[:2]:
        path.unlink()
    load = PixelImages(paths, MeanColour()).load
    assert names(refusal(BadImageError, load, np.array([0, 1])), 2, paths[0])


def test_random_views_follow_from_seed_epoch_and_image_alone(paths):
    loader = PixelImages(paths, MeanColour(), augment=True)

    def view(positions, seed=1, epoch=0):
        return loader.load(np.array(positions), RandomView(seed, epoch))[0].values

    torch.testing.assert_close(view([3, 5])[1], view([0, 1, 5])[2], rtol=0, atol=0)
    assert not torch.equal(view([3]), view([3], epoch=1))
    assert not torch.equal(view([3]), view([3], seed=2))
    noise = view([3, 5]) - torch.tensor([30.0, 50.0]).view(2, 1, 1, 1)
    assert not torch.allclose(noise[0], noise[1], atol=1e-3)


def test_views_are_random_only_where_both_sides_ask_for_it(paths):
    view = RandomView(0, 0)
    assert reds(PixelImages(paths, MeanColour()).load(np.array([2]), view)[0]) == [20.0]
    assert reds(PixelImages(paths, MeanColour(), augment=True).load(np.array([2]))[0]) == [20.0]


def test_a_view_leaves_the_global_stream_alone():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    RandomView(3, 4).generator(5)
    assert torch.equal(before, torch.random.get_rng_state())
    assert RandomView(3, 4).generator(5).initial_seed() == RandomView(3, 4).generator(5).initial_seed()


def test_image_loader_takes_the_store_where_there_is_one():
    corpus = make_corpus([(0, 0)], 2, 1)
    assert isinstance(image_loader(MeanColour(), corpus, MemoryFeatures(2)), FeatureImages)
    loader = image_loader(MeanColour(), corpus, None, augment=True)
    assert isinstance(loader, PixelImages)
    assert isinstance(loader, ImageLoader)


def test_with_features_leaves_out_what_a_store_lacks():
    corpus = five_captions()
    assert with_features(corpus, None) is corpus
    assert with_features(corpus, MemoryFeatures(12)) is corpus
    chosen = with_features(corpus, MemoryFeatures(9))
    assert chosen.image_ids == tuple(f"i{number}" for number in range(9))
    assert len(chosen.captions) == 45
    assert chosen.problems == ("toy: 3 image(s) have no stored features and are skipped (first: i9)",)
    assert names(refusal(StoreError, with_features, corpus, MemoryFeatures(0)), 12)


SENTENCES = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=7), min_size=1, max_size=8)


@pytest.mark.medium
@given(SENTENCES, st.data())
def test_take_equals_padding_a_list(sentences, data):
    tokens = [torch.tensor(ids) for ids in sentences]
    table = TokenTable(tokens)
    positions = data.draw(st.lists(st.integers(0, len(tokens) - 1), min_size=1, max_size=10))
    taken = table.take(np.array(positions))
    expected = pad([tokens[position] for position in positions])
    assert len(table) == len(tokens)
    assert torch.equal(taken.values, expected.values)
    assert taken.mask is not None and expected.mask is not None
    assert torch.equal(taken.mask, expected.mask)


def test_padding_is_zero_whatever_lies_behind():
    table = TokenTable([torch.tensor([5]), torch.tensor([7, 8, 9])])
    taken = table.take(np.array([0, 1]))
    assert taken.values.tolist() == [[5, 0, 0], [7, 8, 9]]
    assert taken.mask.tolist() == [[True, False, False], [True, True, True]]
    assert taken.values.dtype == torch.int64


def test_lengths():
    assert TokenTable([torch.tensor([5]), torch.tensor([7, 8, 9])]).lengths.tolist() == [1, 3]
    assert len(TokenTable([])) == 0
