"""Scores of training pairs by models that were trained without them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from openvse.analysis.stores import OnExtraction, SharedStores, retrieval_recipe, share_stores
from openvse.analysis.telling import TellOnce
from openvse.corpus import Corpus
from openvse.errors import DataError
from openvse.evaluation import embed_corpus
from openvse.files import write_page
from openvse.model import TwoTower
from openvse.tasks.load import load_as
from openvse.tasks.run import train
from openvse.training.records import Watcher
from openvse.types import Relevance

_VALIDATION = 0.1
"""The share of the images of the other folds that selects the epoch."""


@dataclass(frozen=True)
class Plan:
    """What is trained on what.

    Attributes:
        recipe: the recipe by name or file.
        overrides: overrides of the recipe, ``key=value`` each.
        corpus: the pairs that are examined.
        fold: the fold of each image.
        folder: the folder of the runs and stores.
    """

    recipe: str
    overrides: tuple[str, ...]
    corpus: Corpus
    fold: Int[np.ndarray, "I"]
    folder: Path


@dataclass(frozen=True)
class PairScores:
    """How each relevant pair compares with the other pairs of its fold.

    Attributes:
        score: the score of the pair.
        standing: the mean of two z-scores: that of the score among the scores of all texts for its image, and among
            those of all images for its text. A pair that fits no better than chance has a standing near 0.
        rank: how many images of the fold score at least as high for the text; 1 is the best.
        fits: the image of the fold that fits the text best.
    """

    score: Float[np.ndarray, "P"]
    standing: Float[np.ndarray, "P"]
    rank: Int[np.ndarray, "P"]
    fits: Int[np.ndarray, "P"]


def cut_folds(corpus: Corpus, count: int, seed: int) -> Int[np.ndarray, "I"]:
    """Return a fold for each image, of nearly equal sizes, drawn at random.

    Raises:
        DataError: there are too few images for so many folds.
    """
    if len(corpus) < 4 * count:
        raise DataError(
            f"{corpus.name} has {len(corpus)} images for {count} folds: give at least 4 images for each fold"
        )
    return np.random.default_rng(seed).permutation(len(corpus)) % count


def swap_captions(corpus: Corpus, share: float, seed: int) -> tuple[Corpus, Bool[np.ndarray, "P"]]:
    """Give some captions to other images, as a check of what finds them.

    Captions are exchanged in a circle, so that none stays with its image; all captions keep their numbers.

    Args:
        corpus: the corpus.
        share: the share of the pairs to exchange.
        seed: the seed of the draw.

    Returns:
        The corpus with exchanged pairs, and which of its pairs were exchanged.
    """
    relevance = corpus.relevance
    random = np.random.default_rng(seed)
    drawn = random.permutation(len(relevance.images))[: max(2, round(share * len(relevance.images)))]
    # Sorted by image and moved by more than an image has captions, no caption returns to its own image.
    drawn = drawn[np.argsort(relevance.images[drawn], kind="stable")]
    most = int(np.bincount(relevance.images[drawn]).max())
    texts = relevance.texts.copy()
    texts[drawn] = np.roll(relevance.texts[drawn], most)
    original = set(zip(relevance.images.tolist(), relevance.texts.tolist(), strict=True))
    exchanged = np.array(
        [pair not in original for pair in zip(relevance.images.tolist(), texts.tolist(), strict=True)]
    )
    changed = Relevance(relevance.images, texts, relevance.num_images, relevance.num_texts)
    return replace(corpus, relevance=changed), exchanged


def score_folds(
    plan: Plan, watcher: Watcher | None = None, extracted: OnExtraction | None = None
) -> PairScores:
    """Train one model without each fold, and score the pairs of the fold with it.

    A run that was interrupted goes on, and one that is finished is not trained again.

    Args:
        plan: what to train on what.
        watcher: is notified about the training.
        extracted: is called with the progress of extracting features.

    Raises:
        OpenVSEError: the recipe is not for retrieval, or cannot be trained on these data.
    """
    count = int(plan.fold.max()) + 1
    pairs = len(plan.corpus.relevance.images)
    found = PairScores(
        *(np.zeros(pairs) for _ in range(2)), *(np.zeros(pairs, dtype=np.int64) for _ in range(2))
    )
    base = retrieval_recipe(plan.recipe, [*plan.overrides, "data.source=unused"])
    stores = share_stores(base, plan.corpus, plan.folder, extracted)
    teller = TellOnce(watcher)
    for number in range(count):
        source = f"data.source={_write_fold(plan, number, stores)}"
        # Without stored features, images are read from where they are.
        more = stores.overrides if stores.images else (*stores.overrides, "data.allow_outside=true")
        recipe = retrieval_recipe(plan.recipe, [*plan.overrides, source, *more])
        teller.begin(f"training {number + 1} of {count}: without fold {number + 1}")
        result = train(recipe, plan.folder / f"fold_{number + 1}", resume=True, watcher=teller)
        model = load_as(TwoTower, result.best)
        _score(plan, number, model, stores, found)
    return found


def _write_fold(plan: Plan, number: int, stores: SharedStores) -> Path:
    """Write the pairs outside a fold as a table, a tenth of their images for validation."""
    corpus = plan.corpus
    others = np.flatnonzero(plan.fold != number)
    chosen = np.random.default_rng(number).permutation(others)[: max(2, round(_VALIDATION * len(others)))]
    validation = set(chosen.tolist())
    # Stored features go by the identifier of an image; without them, its file is read.
    names = [str(path) for path in corpus.image_paths] if stores.images is None else corpus.image_ids
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("file_name", "caption", "split"))
    for image, caption in _pairs(corpus):
        if plan.fold[image] != number:
            split = "validation" if image in validation else "train"
            writer.writerow((names[image], corpus.captions[caption], split))
    path = plan.folder / f"fold_{number + 1}.csv"
    write_page(path, text.getvalue())
    return path.resolve()


def _pairs(corpus: Corpus) -> Iterator[tuple[int, int]]:
    relevance = corpus.relevance
    return zip(relevance.images.tolist(), relevance.texts.tolist(), strict=True)


@torch.inference_mode()
def _score(plan: Plan, number: int, model: TwoTower, stores: SharedStores, found: PairScores) -> None:
    """Fill in the scores of the pairs of a fold."""
    inside = np.flatnonzero(plan.fold == number)
    held = plan.corpus.select(inside)
    embedded = embed_corpus(model, held, stores.images, text_features=stores.texts)
    if len(embedded.corpus) < len(held):
        raise DataError(
            f"{len(held) - len(embedded.corpus)} image(s) cannot be read: check the data by 'openvse data check'"
        )
    scores = model.score(embedded.images, embedded.texts).double().numpy()
    own = embedded.corpus.relevance
    by_image = (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True).clip(
        min=1e-9
    )
    by_text = (scores - scores.mean(axis=0)) / scores.std(axis=0).clip(min=1e-9)
    # ``select`` keeps the pairs of an image in their order, sorted by the image.
    position = {int(image): row for row, image in enumerate(inside)}
    kept = np.flatnonzero(np.isin(plan.corpus.relevance.images, inside))
    rows = np.array([position[int(image)] for image in plan.corpus.relevance.images[kept]])
    kept = kept[np.argsort(rows, kind="stable")]
    pair = own.images, own.texts
    found.score[kept] = scores[pair]
    found.standing[kept] = (by_image[pair] + by_text[pair]) / 2
    found.rank[kept] = (scores[:, own.texts] >= scores[pair]).sum(axis=0)
    found.fits[kept] = inside[scores[:, own.texts].argmax(axis=0)]
