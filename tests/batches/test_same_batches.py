"""A data set in all forms in which it is published gives the same training batches, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from array_files import random_features, write_mapping, write_split
from openvse.batches.pairs import EpochBatches, FeatureImages, PairDataset, TokenTable
from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.features.extract import FeatureStoreWriter
from openvse.features.store import FeatureStore
from openvse.tokenization.vocabulary import Vocabulary
from openvse.types import Batch, FeatureSource

NAMES = [f"{number}.jpg" for number in (100, 20, 3, 41, 5, 67, 70, 8, 9)]
SPLIT_OF = dict(zip(NAMES, ["train", "train", "dev", "train", "test", "train", "dev", "train", "test"], strict=True))
CAPTIONS = {name: [f"a dog {name[0]} runs {number} ." for number in range(5)] for name in NAMES}
FEATURES = dict(zip(NAMES, random_features(len(NAMES)), strict=True))
MIXED = [NAMES[place] for place in (4, 0, 8, 3, 7, 1, 6, 2, 5)]


def members(split: str) -> list[str]:
    return [name for name in MIXED if SPLIT_OF[name] == split]


def write_token_file(root: Path) -> None:
    (root / "splits").mkdir(parents=True)
    lines = [f"{name}#{place}\t{text}" for name in NAMES for place, text in enumerate(CAPTIONS[name])]
    (root / "results_20130124.token").write_text("\n".join(lines) + "\n")
    for split in ("train", "dev", "test"):
        (root / "splits" / f"{split}.txt").write_text("\n".join(members(split)))


def write_karpathy(root: Path) -> None:
    root.mkdir()
    images = [
        {
            "filename": name,
            "split": {"dev": "val"}.get(SPLIT_OF[name], SPLIT_OF[name]),
            "sentences": [{"raw": text} for text in CAPTIONS[name]],
        }
        for name in MIXED
    ]
    (root / "dataset_flickr30k.json").write_text(json.dumps({"images": images}))


def write_arrays(root: Path, repeats: int) -> None:
    numbers = {name: str(place) for place, name in enumerate(NAMES)}
    for split in ("train", "dev", "test"):
        names = members(split)
        features, captions = np.stack([FEATURES[name] for name in names]), [CAPTIONS[name] for name in names]
        ids = [numbers[name] for name in names]
        write_split(root / "precomp", split, features, captions, repeats=repeats, ids=ids)
    write_mapping(root / "id_mapping.json", {number: name for name, number in numbers.items()})


FORMS: dict[str, Callable[[Path], None]] = {
    "token": write_token_file,
    "karpathy": write_karpathy,
    "one row an image": lambda root: write_arrays(root, 1),
    "five rows an image": lambda root: write_arrays(root, 5),
}


def open_form(root: Path, form: str) -> Corpus:
    """Write the data set in a form, and open it."""
    FORMS[form](root)
    kind = "flickr30k" if form in ("token", "karpathy") else "precomputed"
    return open_corpus(f"{kind}:{root}", require_images=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> FeatureStore:
    path = tmp_path_factory.mktemp("store")
    with FeatureStoreWriter(path, fingerprint="regions", dim=4, dtype="float32") as writer:
        for name in reversed(NAMES):
            writer.add(name, torch.from_numpy(FEATURES[name]))
    return FeatureStore(path)


def batches(corpus: Corpus, features: FeatureSource) -> list[Batch]:
    """Return two epochs of training."""
    training = corpus.split("train")
    vocabulary = Vocabulary.from_captions(training.captions)
    dataset = PairDataset(
        training,
        FeatureImages(features, training.image_ids),
        TokenTable([torch.tensor(vocabulary.ids(caption)) for caption in training.captions]),
    )
    return [dataset[key] for epoch in (0, 1) for key in EpochBatches(len(dataset), 8, seed=3, epoch=epoch)]


@pytest.mark.parametrize("form", [name for name in FORMS if name != "token"])
def test_forms_give_the_same_batches(form: str, tmp_path: Path, store: FeatureStore) -> None:
    corpora = [open_form(tmp_path / name, name) for name in ("token", form)]
    first, other = (batches(corpus, corpus.features or store) for corpus in corpora)
    assert len(first) == len(other) == 6
    for one, two in zip(first, other, strict=True):
        for a, b in ((one.images, two.images), (one.texts, two.texts)):
            assert a.mask is not None and b.mask is not None
            assert torch.equal(a.values, b.values) and torch.equal(a.mask, b.mask)
        assert torch.equal(one.positives, two.positives) and torch.equal(one.image_keys, two.image_keys)
        assert one.description == two.description
    for split in ("train", "validation", "test"):
        assert set(corpora[0].split(split).captions) == set(corpora[1].split(split).captions)


def test_token_file_and_json_give_the_same_corpus(tmp_path: Path) -> None:
    token, karpathy = (open_form(tmp_path / name, name) for name in ("token", "karpathy"))
    assert (token.image_ids, token.captions, token.splits) == (karpathy.image_ids, karpathy.captions, karpathy.splits)
    np.testing.assert_array_equal(token.relevance.images, karpathy.relevance.images)
    np.testing.assert_array_equal(token.relevance.texts, karpathy.relevance.texts)
