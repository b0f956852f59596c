"""Batches in which each image comes once an epoch, with several of its captions."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from accelerate import Accelerator

from openvse.batches.pairs import BatchKey, EpochBatches, FeatureImages, PairDataset, PairsOfImages, TokenTable
from openvse.errors import DataError, RecipeError
from openvse.retrieval.training import RetrievalTask, open_retrieval
from openvse.tasks.recipes import parse_recipe
from openvse.training.inputs import RunInputs
from openvse.training.records import Silent
from tests.naming import names, refusal
from tests.tiny import tiny_tree
from tests.tiny_questions import answering_tree
from toy_data import MemoryFeatures, five_captions, make_corpus, make_tokens

# Images 0 to 3 with 3, 1, 0 and 2 captions; one caption belongs to two images.
UNEVEN = make_corpus([(0, 0), (3, 4), (0, 1), (1, 3), (0, 2), (3, 3)], 4, 5)


def orders(captions, size: int, corpus=None, **options) -> list[list[int]]:
    pairs = PairsOfImages((corpus or five_captions()).relevance, captions)
    return [key.pairs.tolist() for key in EpochBatches(pairs, size, **{"seed": 1, "epoch": 0} | options)]


def test_all_captions_of_an_image_meet_in_one_batch() -> None:
    batches = orders("all", 4)
    assert [len(batch) for batch in batches] == [20, 20, 20]
    assert sorted(pair for batch in batches for pair in batch) == list(range(60))
    images = [{pair // 5 for pair in batch} for batch in batches]
    assert [len(each) for each in images] == [4, 4, 4] and len(set.union(*images)) == 12


def test_an_epoch_draws_some_captions_of_each_image_anew() -> None:
    first, second = (orders(2, 4, epoch=epoch) for epoch in (0, 1))
    for batches in (first, second):
        drawn = [pair for batch in batches for pair in batch]
        assert len(drawn) == len(set(drawn)) == 24
        assert np.bincount([pair // 5 for pair in drawn]).tolist() == [2] * 12
    assert set(chain(*first)) != set(chain(*second))
    places = np.bincount([pair % 5 for epoch in range(50) for batch in orders(1, 4, epoch=epoch) for pair in batch])
    assert places.min() > 80, "each of five captions about 120 times of 600"


def test_images_have_as_many_captions_as_there_are() -> None:
    (both,) = orders("all", 3, UNEVEN)
    assert sorted(both) == list(range(6)), "the image without captions is never drawn"
    (some,) = orders(2, 100, UNEVEN)
    assert np.bincount(UNEVEN.relevance.images[some]).tolist() == [2, 1, 0, 2]


def test_the_order_follows_seed_and_epoch_alone() -> None:
    assert orders(2, 5) == orders(2, 5)
    assert orders(2, 5) != orders(2, 5, seed=2) and orders("all", 5) != orders("all", 5, epoch=1)


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_a_resumed_epoch_goes_on_where_it_was(start: int) -> None:
    assert orders(2, 4, start=start) == orders(2, 4)[start:]


def test_processes_share_the_images_of_a_batch_and_their_captions() -> None:
    corpus = five_captions()
    dataset = PairDataset(corpus, FeatureImages(MemoryFeatures(12), corpus.image_ids), TokenTable(make_tokens(60)))
    pairs, given = PairsOfImages(corpus.relevance, 3), {"seed": 0, "epoch": 0, "num_processes": 2}
    keys = [next(iter(EpochBatches(pairs, 5, rank=rank, **given))) for rank in range(2)]
    assert keys[0].pairs.tolist() == keys[1].pairs.tolist()
    parts = [dataset[key] for key in keys]
    assert [len(part.images) for part in parts] == [3, 2]
    assert [int(part.positives.sum()) for part in parts] == [9, 6]
    whole = dataset[BatchKey(keys[0].pairs)]
    assert sorted(chain(*(part.image_keys.tolist() for part in parts))) == whole.image_keys.tolist()


def test_every_process_needs_an_image() -> None:
    assert names(refusal(DataError, orders, "all", 2, num_processes=3), 12, 2, 3)
    assert names(refusal(DataError, orders, "all", 2, make_corpus([], 3, 0)), 0)


def opened(folder: Path, captions, size: int) -> RetrievalTask:
    tree = tiny_tree(folder, batch_size=size)
    encoder = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32}
    tree["image"] = {**tree["image"], "encoder": encoder}
    tree["data"] = {"source": f"folder:{folder}", "captions_per_image": captions}
    return open_retrieval(parse_recipe(tree), RunInputs(folder, Accelerator(cpu=True), Silent()))


@pytest.mark.medium
def test_a_recipe_asks_for_it(make_photos) -> None:
    paths = make_photos(5)
    lines = [
        {"file_name": path.name, "split": "train", "captions": [f"thing {n} {path.stem}" for n in range(3)]}
        for path in paths
    ]
    lines[-1]["split"] = "validation"
    (paths[0].parent / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    task = opened(paths[0].parent, "all", 2)
    batches = list(task.epoch(0, 0))
    assert task.unit == "images" and task.steps_per_epoch == len(batches) == 2
    assert [tuple(batch.positives.shape) for batch in batches] == [(2, 6), (2, 6)]
    assert [tuple(b.positives.shape) for b in opened(paths[0].parent, 2, 4).epoch(0, 0)] == [(4, 8)]
    assert opened(paths[0].parent, None, 2).steps_per_epoch == 6, "pairs at random"


@pytest.mark.parametrize("captions", [0, -1, "some", 1.5])
def test_other_numbers_are_refused(captions, tmp_path: Path) -> None:
    tree = {**tiny_tree(tmp_path), "data": {"captions_per_image": captions}}
    assert names(refusal(RecipeError, parse_recipe, tree), "data.captions_per_image")


def test_questions_are_no_captions(tmp_path: Path) -> None:
    for key in ("captions_per_image", "copies"):
        tree = {**answering_tree(tmp_path), "data": {key: 2}}
        assert names(refusal(RecipeError, parse_recipe, tree), f"data.{key}")
