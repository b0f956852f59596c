"""Measures whether models know the order of a clip: on the clip set that ``photo_clips.py`` writes.

python studies/clip_order.py clips runs/pvse/best runs/hgr/best --features features/clips

Each pair of photos gave two clips, "A, then B" and "B, then A". The table has the RSUM of each model, and how often a
caption scores its own clip above the clip in the other order. Equal scores count half, so a model that cannot know
the order is right in 50 %. The bracket is the 95 % interval, from a bootstrap over the pairs of photos.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.evaluation.embed import Member, embed_corpus
from openvse.evaluation.report import evaluate_sets
from openvse.features.store import FeatureStore
from openvse.model.two_tower import TwoTower
from openvse.tasks.load import load_as

RESAMPLES = 1000


def main() -> None:
    """Print a table with a row for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("clips", help="the folder that photo_clips.py wrote")
    parser.add_argument("models", nargs="+", help="model folders")
    parser.add_argument("--features", type=Path, help="feature store of the clips")
    parser.add_argument("--split", default="test")
    options = parser.parse_args()
    corpus = open_corpus(options.clips).split(options.split)
    features = None if options.features is None else FeatureStore(options.features)
    print("| model | RSUM | order known, % |\n| --- | ---: | ---: |")
    for name in options.models:
        model = load_as(TwoTower, name)
        embedded = embed_corpus(model, corpus, features)
        member = Member(embedded.images, embedded.texts, model.similarity)
        report = evaluate_sets(member.images, member.texts, embedded.corpus.relevance, member.similarity, resamples=0)
        known = order_known(member, embedded.corpus)
        low, high = interval(known)
        print(f"| {name} | {report.metrics['rsum']:.1f} | {100 * known.mean():.1f} ({low:.1f} to {high:.1f}) |")


def order_known(member: Member, corpus: Corpus) -> Float[np.ndarray, "pairs"]:
    """Return, for each pair of photos, the share of its captions that score their own clip above the other one."""
    place = {Path(item).stem: position for position, item in enumerate(corpus.image_ids)}
    swapped = np.array([place[_other(Path(item).stem)] for item in corpus.image_ids])
    images, texts = corpus.relevance.images, corpus.relevance.texts
    own, other = (
        member.score_pairs(torch.from_numpy(chosen), torch.from_numpy(texts)).numpy()
        for chosen in (images, swapped[images])
    )
    right = (own > other) + 0.5 * (own == other)
    _, pair = np.unique(np.minimum(images, swapped[images]), return_inverse=True)
    shares: Float[np.ndarray, "pairs"] = np.bincount(pair, right) / np.bincount(pair)
    return shares


def interval(shares: Float[np.ndarray, "pairs"]) -> tuple[float, float]:
    """Return the 95 % interval of the mean in percent."""
    drawn = np.random.default_rng(0).integers(len(shares), size=(RESAMPLES, len(shares)))
    low, high = np.percentile(100 * shares[drawn].mean(axis=1), (2.5, 97.5))
    return float(low), float(high)


def _other(stem: str) -> str:
    return stem[:-1] + ("b" if stem.endswith("a") else "a")


if __name__ == "__main__":
    main()
