r"""What the names of classes add to the linear map in closed form, by the number of captioned images.

openvse extract crops flickr8k:FOLDER windows shared=true backbone.exact_decode=false
python studies/names_of_classes.py flickr8k:FOLDER --store windows --arrays arrays.npz --split test \
  --sizes 0 20 100 800 6000 --words dog bike beach snow mountain swing rock car street hat water grass person man \
  child boy "red shirt" "two dogs"

Images and sentences are described once, as the aggregators of ``folder`` do it, into ``--arrays``. Maps are solved from
images that are drawn from the training split as ``own_folder.py`` draws them, and measured plainly and with hubs taken
out by a bank of the images that they were solved from: without names, with them, and with both sides whitened by the
errors of left-out images. Size 0 knows no caption and takes the mean of the images that are searched. ``--shuffled``
gives the classes each other's names. ``--middle`` takes a store that ``backbone.middle=true`` made. ``--words`` prints,
without captions, which share of the ten best images for a word has it in a caption, and which share of all images.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openvse.backbones.efficientnet_lite import FEATURE_DIM
from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.errors import DataError
from openvse.evaluation.embed import Member, drawn_for_bank, make_bank
from openvse.evaluation.report import Report, evaluate_sets
from openvse.features.store import FeatureStore
from openvse.retrieval.build import build_model
from openvse.retrieval.closed_form import NOISE_FLOOR, LinearMaps, described_by, linear_maps, maps_of_names
from openvse.retrieval.names import class_names
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.similarities import SetMax
from openvse.specs.load import read_recipe, validated
from openvse.types import EmbeddingSet

ALONE = [
    "embed_dim=384",
    "image.aggregator={name: pooled_linear, power: 0.5, classes: 1000}",
    "text.aggregator=pooled_linear",
]
MIDDLE = 384  # numbers of the middle of EfficientNet-Lite0
OFF = 1e9  # a floor of the covariance of errors that hides it
VARIANTS = {
    "plain": (False, OFF),
    "names": (True, OFF),
    "names, errors": (True, NOISE_FLOOR),
    "errors": (False, NOISE_FLOOR),
}
"""Whether there are names, and the floor of the covariance of errors."""


def main(arguments: Sequence[str]) -> None:
    """Print a row for each size, and with captions also one without names and the difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("source", help="a data set with all splits, such as flickr8k:FOLDER")
    parser.add_argument("--store", type=Path, required=True, help="feature store of the backbone of folder")
    parser.add_argument("--arrays", type=Path, required=True, help="file of the descriptions, made if missing")
    parser.add_argument("--recipe", default="folder", help="whose encoders describe images and sentences")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--sizes", type=int, nargs="+", default=[0, 20, 100, 800])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--middle", action="store_true", help="--store has the middle of the network")
    parser.add_argument("--shuffled", action="store_true")
    parser.add_argument("--words", nargs="*", default=[], help="such as: dog snow person 'red shirt'")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    corpus = open_corpus(options.source)
    if not options.arrays.exists():
        np.savez(options.arrays, **describe(corpus, options.store, options.recipe, options.middle))
    known = {name: array.astype(float) for name, array in np.load(options.arrays).items()}
    if options.shuffled:
        known["E"] = np.random.default_rng(0).permutation(known["E"])
    labels = np.asarray(corpus.split_labels())
    learn, test = (np.flatnonzero(labels == split) for split in ("train", options.split))
    for size in options.sizes:
        runs: dict[str, list[tuple[Report, Report]]] = {}
        for seed in options.seeds if 0 < size < len(learn) else [0]:
            chosen = learn[random.Random(f"{size} {seed}").sample(range(len(learn)), min(size, len(learn)))]
            for name, how in VARIANTS.items() if size else [("names", None)]:
                maps = solved(corpus, known, chosen, *how) if how else named(known, test)
                runs.setdefault(name, []).append(measured(corpus, known, maps, test, chosen))
        for name, reports in runs.items():
            print(f"{size:5} {name}: {row(reports)}", flush=True)
            if size and name != "plain":
                print(f"{size:5} {name} - plain, hubs out: {difference(reports, runs['plain'])}", flush=True)
    if options.words:
        print_words(corpus, known, test, options.words)


def describe(corpus: Corpus, store: Path, recipe: str, middle: bool) -> dict[str, Any]:
    """Return u, s and c of all images (X), all sentences (T), and the sentences of the classes (E)."""
    more = ["image.encoder.backbone.middle=true", f"image.aggregator.middle={MIDDLE}"] if middle else []
    model = build_model(validated(RetrievalRecipe, read_recipe(recipe, ALONE + more))).eval()
    names, described = class_names("auto", model), described_by(model)
    features = FeatureStore(store, model.image.encoder.fingerprint)
    positions = features.positions(corpus.image_ids)
    with torch.inference_mode():
        images = [
            described.image(features.gather(positions[start : start + 128])).vectors[:, 0].numpy()
            for start in range(0, len(positions), 128)
        ]
    texts, table = (described.encode_text(each).vectors[:, 0].numpy() for each in (corpus.captions, names))
    return {"X": np.concatenate(images), "T": texts, "E": table}


def solved(corpus: Corpus, known: dict[str, Any], chosen: Any, names: bool, noise_floor: float) -> LinearMaps:
    """Return the maps of some captioned images."""
    pairs, row_of = corpus.relevance, np.full(len(corpus.image_ids), -1)
    row_of[chosen] = np.arange(len(chosen))
    owners = row_of[pairs.images]
    sentences, table = known["T"][pairs.texts[owners >= 0]], known["E"] if names else 0 * known["E"]
    seen, width = known["X"][chosen], table.shape[1]
    middle = seen.shape[1] - len(table) - FEATURE_DIM
    how = {"middle": middle, "noise_floor": noise_floor}
    return linear_maps(seen, sentences, owners[owners >= 0], table, width, **how)[0]


def named(known: dict[str, Any], test: Any) -> LinearMaps:
    """Return the maps of names alone."""
    count, width = known["E"].shape
    likely = known["X"][test, -count:].mean(0)
    return maps_of_names(known["E"], likely, known["X"].shape[1] - count, width)


def print_words(corpus: Corpus, known: dict[str, Any], test: Any, words: Sequence[str]) -> None:
    """Print the precision of the ten best images for each word, without captions, beside the share of all images."""
    maps = named(known, test)
    member, relevance = member_of(corpus, known, maps, test)
    captions = np.asarray(corpus.select(test).captions)
    model = build_model(validated(RetrievalRecipe, read_recipe("folder", ALONE))).eval()
    queries = unit(described_by(model).encode_text(list(words)).vectors[:, 0].double().numpy() @ maps.text)
    found = (member.images.vectors[:, 0] @ queries.vectors[:, 0].T).numpy()
    for word, column in zip(words, found.T, strict=True):
        has = np.array([f" {word} " in f" {text.lower().replace('.', ' ').replace(',', ' ')} " for text in captions])
        images = np.zeros(len(test), bool)
        images[relevance.images[has[relevance.texts]]] = True
        best = np.argsort(-column)[:10]
        print(f"{word}: {images[best].mean():.1f} of the ten best, {images.mean():.2f} of all", flush=True)


def measured(corpus: Corpus, known: dict[str, Any], maps: LinearMaps, test: Any, chosen: Any) -> tuple[Report, Report]:
    """Return the report of a split, plain and with hubs taken out, if the images are enough for a bank."""
    member, relevance = member_of(corpus, known, maps, test)
    plain = evaluate_sets(member.images, member.texts, relevance, member.similarity, name="plain")
    if not len(chosen):
        return plain, plain
    try:
        drawn = drawn_for_bank(corpus.select(chosen))
        places = {name: place for place, name in enumerate(corpus.image_ids)}
        own, _ = member_of(corpus, known, maps, np.array([places[name] for name in drawn.image_ids]))
        bank = make_bank("study", own, drawn)
    except DataError:
        return plain, plain
    return plain, evaluate_sets(member.images, member.texts, relevance, member.similarity, name="hubs out", bank=bank)


def member_of(corpus: Corpus, known: dict[str, Any], maps: LinearMaps, images: Any) -> tuple[Member, Any]:
    """Return the embeddings of some images and of their sentences, in the order of ``Corpus.select``."""
    numbered = [str(number) for number in range(len(corpus.captions))]
    part = Corpus(
        corpus.name, corpus.image_ids, corpus.image_paths, tuple(numbered), corpus.relevance, corpus.splits
    ).select(images)
    texts = known["T"][[int(number) for number in part.captions]]
    sets = (unit((known["X"][images] - maps.image_mean) @ maps.image), unit((texts - maps.text_mean) @ maps.text))
    return Member(*sets, SetMax()), part.relevance


def unit(vectors: Any) -> EmbeddingSet:
    """Return vectors as embeddings of length 1."""
    made = torch.from_numpy(vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).float().unsqueeze(1)
    return EmbeddingSet(made, torch.ones(made.shape[:2], dtype=torch.bool))


def row(reports: Sequence[tuple[Report, Report]]) -> str:
    """Return RSUM, plain and with hubs out, and R@1 with hubs out, as means and standard deviations over the draws."""
    plain, out = ([pair[which].metrics["rsum"] for pair in reports] for which in (0, 1))
    first = [np.mean([pair[1].metrics[f"{way}_r1"] for pair in reports]) for way in ("i2t", "t2i")]
    spread = [np.std(each, ddof=1) if len(each) > 1 else 0.0 for each in (plain, out)]
    return (
        f"rsum {np.mean(plain):.1f} ± {spread[0]:.1f} -> {np.mean(out):.1f} ± {spread[1]:.1f}, "
        f"R@1 {first[0]:.1f} / {first[1]:.1f}"
    )


def difference(more: Sequence[tuple[Report, Report]], less: Sequence[tuple[Report, Report]]) -> str:
    """Return the mean difference of RSUM over the draws, and its interval over the same resamples of the images."""
    pairs = list(zip(more, less, strict=True))
    mean = np.mean([a[1].metrics["rsum"] - b[1].metrics["rsum"] for a, b in pairs])
    drawn = np.mean([a[1].replicates["rsum"] - b[1].replicates["rsum"] for a, b in pairs], axis=0)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


if __name__ == "__main__":
    main(sys.argv[1:])
