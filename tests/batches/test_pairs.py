"""Training batches: which pairs, in which order, and what a batch of them holds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from openvse.batches.pairs import BatchKey, EpochBatches, FeatureImages, PairDataset, PixelImages, TokenTable
from openvse.errors import BadImageError, DataError
from openvse.types import Batch
from tests.naming import names, refusal
from toy_data import MeanColour, MemoryFeatures, five_captions, make_corpus, make_tokens


def dataset_of(corpus) -> PairDataset:
    images = FeatureImages(MemoryFeatures(len(corpus)), corpus.image_ids)
    return PairDataset(corpus, images, TokenTable(make_tokens(len(corpus.captions))))


def texts_of(batch: Batch) -> list[int]:
    """Read which texts a batch holds off its token ids."""
    return (batch.texts.values[:, 0] - 1).tolist()


def orders(*args, **options) -> list[list[int]]:
    return [key.pairs.tolist() for key in EpochBatches(*args, **options)]


# ---------------------------------------------------------------- EpochBatches


def test_an_epoch_draws_each_pair_once():
    batches = orders(20, 5, seed=1, epoch=2)
    assert [len(batch) for batch in batches] == [5, 5, 5, 5]
    assert sorted(pair for batch in batches for pair in batch) == list(range(20))


def test_what_does_not_fill_a_batch_is_left_out():
    batches = orders(23, 5, seed=1, epoch=2)
    assert [len(batch) for batch in batches] == [5, 5, 5, 5]
    assert len({pair for batch in batches for pair in batch} & set(range(23))) == 20
    assert len(EpochBatches(23, 5, seed=1, epoch=2)) == 4


def test_the_order_follows_seed_and_epoch_alone():
    first = orders(40, 8, seed=1, epoch=0)
    torch.manual_seed(123)
    np.random.default_rng().random()
    assert orders(40, 8, seed=1, epoch=0) == first
    assert orders(40, 8, seed=1, epoch=1) != first
    assert orders(40, 8, seed=2, epoch=0) != first


@pytest.mark.parametrize("start", [0, 1, 3, 4, 9])
def test_a_resumed_epoch_goes_on_where_it_was(start):
    rest = orders(40, 10, seed=1, epoch=0, start=start)
    assert rest == orders(40, 10, seed=1, epoch=0)[start:]
    assert len(EpochBatches(40, 10, seed=1, epoch=0, start=start)) == len(rest)


def test_fewer_pairs_than_a_batch_are_one_smaller_batch():
    assert [sorted(batch) for batch in orders(3, 128, seed=0, epoch=0)] == [[0, 1, 2]]


def test_batches_that_leave_a_process_without_pairs():
    for pairs, size, processes in ((0, 4, 1), (3, 8, 4), (50, 2, 4)):
        given = {"seed": 0, "epoch": 0, "num_processes": processes}
        assert names(refusal(DataError, EpochBatches, pairs, size, **given), pairs, size, processes)


def test_a_key_knows_its_view_and_process():
    key = next(iter(EpochBatches(9, 4, seed=5, epoch=6, rank=1, num_processes=2)))
    assert key.view is not None
    assert (key.view.seed, key.view.epoch, key.rank, key.num_processes) == (5, 6, 1, 2)


# ----------------------------------------------------------------- PairDataset


def test_each_image_stands_once_and_its_captions_are_positives():
    dataset = dataset_of(five_captions())
    batch = dataset[BatchKey(np.array([11, 58, 10, 3]))]
    assert batch.images.values.flatten().tolist() == [0.0, 2.0, 11.0]
    assert texts_of(batch) == [3, 10, 11, 58]
    assert batch.positives.tolist() == [
        [True, False, False, False],
        [False, True, True, False],
        [False, False, False, True],
    ]
    assert batch.image_keys.tolist() == [0, 2, 11]
    assert batch.partners.tolist() == [[0, 0], [2, 1], [2, 2], [11, 3]]
    assert len(dataset) == 60


def test_the_description_names_the_pairs():
    batch = dataset_of(five_captions())[BatchKey(np.array([11, 58, 3]))]
    assert batch.description == "3 pairs: pair 11 (image i2) to pair 3 (image i0)"


@st.composite
def drawn(draw):
    num_images, num_texts = draw(st.integers(1, 7)), draw(st.integers(1, 9))
    possible = st.tuples(st.integers(0, num_images - 1), st.integers(0, num_texts - 1))
    pairs = draw(st.lists(possible, min_size=1, max_size=25, unique=True))
    chosen = draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, unique=True))
    return pairs, num_images, num_texts, chosen


@pytest.mark.medium
@given(drawn())
def test_positives_equal_a_slow_loop(case):
    """Texts may have several images: a text is a positive of each of them, drawn or not."""
    pairs, num_images, num_texts, chosen = case
    batch = dataset_of(make_corpus(pairs, num_images, num_texts))[BatchKey(np.array(chosen))]
    images = sorted({pairs[position][0] for position in chosen})
    texts = sorted({pairs[position][1] for position in chosen})
    assert batch.images.values.flatten().tolist() == images
    assert texts_of(batch) == texts
    for row, image in enumerate(images):
        for column, text in enumerate(texts):
            assert bool(batch.positives[row, column]) == ((image, text) in pairs)


@pytest.mark.medium
@given(st.integers(1, 4), st.integers(0, 5))
def test_processes_share_a_batch_without_loss(num_processes, seed):
    dataset = dataset_of(five_captions())
    whole = next(iter(EpochBatches(60, 24, seed=seed, epoch=0)))
    expected = dataset[whole]
    parts = [dataset[BatchKey(whole.pairs, None, rank, num_processes)] for rank in range(num_processes)]
    images = [key for part in parts for key in part.image_keys.tolist()]
    texts = [text for part in parts for text in texts_of(part)]
    assert sorted(images) == expected.image_keys.tolist()
    assert sorted(texts) == texts_of(expected)
    assert max(map(len, (part.images for part in parts))) - min(len(part.images) for part in parts) <= 1
    assert sum(int(part.positives.sum()) for part in parts) == int(expected.positives.sum())


def test_pairs_of_a_bad_image_leave_the_batch(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for path in paths:
        Image.new("RGB", (2, 2)).save(path)
    paths[1].write_bytes(b"")
    corpus = make_corpus([(0, 0), (1, 1), (1, 2), (2, 3)], 3, 4)
    dataset = PairDataset(corpus, PixelImages(paths, MeanColour()), TokenTable(make_tokens(4)))
    batch = dataset[BatchKey(np.array([3, 2, 1, 0]))]
    assert texts_of(batch) == [0, 3]
    assert batch.positives.tolist() == [[True, False], [False, True]]
    assert batch.image_keys.tolist() == [0, 2]
    assert batch.description == "2 pairs: pair 3 (image i2) to pair 0 (image i0)"
    assert names(refusal(BadImageError, dataset.__getitem__, BatchKey(np.array([1, 2]))), 1, paths[1])


def test_a_process_without_an_image():
    key = BatchKey(np.array([0, 1, 2]), rank=1, num_processes=2)
    assert names(refusal(DataError, dataset_of(five_captions()).__getitem__, key), 3, 2)


def test_parts_of_different_corpora_are_refused():
    corpus = five_captions()
    images = FeatureImages(MemoryFeatures(12), corpus.image_ids)
    assert names(refusal(DataError, PairDataset, corpus, images, TokenTable(make_tokens(59))), 12, 60, 12, 59)


@pytest.mark.medium
def test_workers_change_nothing(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(12)]
    for number, path in enumerate(paths):
        Image.new("RGB", (2, 2), (number,) * 3).save(path)
    corpus = five_captions()
    dataset = PairDataset(corpus, PixelImages(paths, MeanColour(), augment=True), TokenTable(make_tokens(60)))

    def batches(num_workers):
        order = EpochBatches(len(dataset), 16, seed=3, epoch=1)
        return list(DataLoader(dataset, sampler=order, batch_size=None, num_workers=num_workers))

    alone, shared = batches(0), batches(2)
    assert len(alone) == len(shared) == 3
    for one, other in zip(alone, shared, strict=True):
        assert isinstance(other, Batch)
        assert torch.equal(one.images.values, other.images.values)
        assert torch.equal(one.texts.values, other.texts.values)
        assert torch.equal(one.positives, other.positives)
        assert one.description == other.description
