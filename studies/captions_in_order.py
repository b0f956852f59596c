r"""How much a folder gains from captions that are typed one after the other, by the rule that says which image is next.

python studies/captions_in_order.py flickr8k:FOLDER --arrays arrays.npz --split test

``names_of_classes.py`` makes the arrays. A draw is a folder of 3,000 images of the training split, with one caption for
each (``--all-captions`` takes five). They are captioned in the order of a rule, and the maps are solved after each
size, with the names of classes. The row ``names`` knows no caption. Images that are no part of the folder are searched.
"found" is the mean precision of the ten best images for each of some words. The rules:

- random: in random order.
- spread: the image that is farthest from all that are captioned, by the angle from the mean (farthest first).
- gain: ``openvse.teaching.described``.
- asked: the same, but images near to what was searched in vain count more. After each size, every word of whose first
  ten images of the folder less than half have it is one that was searched in vain, and its first 20 images count
  5 times.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from names_of_classes import ALONE, difference, member_of, named, row, solved, unit
from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.evaluation.report import Report, evaluate_sets
from openvse.retrieval.build import build_model
from openvse.retrieval.closed_form import NOISE_FLOOR, LinearMaps, described_by
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.specs.load import read_recipe, validated
from openvse.teaching.described import main_directions, next_images

WORDS = "dog/bike/beach/snow/mountain/swing/rock/car/street/hat/water/grass/person/man/child/boy/red shirt/two dogs"
Found = tuple[Report, Report]


def main(arguments: Sequence[str]) -> None:
    """Print, for each size, a row of each rule and its difference from the random one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("source", help="a data set with all splits, such as flickr8k:FOLDER")
    parser.add_argument("--arrays", type=Path, required=True, help="made by names_of_classes.py")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 20, 50, 100, 200, 400])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rules", nargs="+", default=["random", "spread", "gain", "asked"])
    parser.add_argument("--all-captions", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    corpus = open_corpus(options.source)
    known = {name: array.astype(float) for name, array in np.load(options.arrays).items()}
    with torch.inference_mode():
        model = described_by(build_model(validated(RetrievalRecipe, read_recipe("folder", ALONE))).eval())
        words = model.encode_text(WORDS.split("/")).vectors[:, 0].double().numpy()
    labels, has = np.asarray(corpus.split_labels()), having(corpus)
    learn, test = (np.flatnonzero(labels == split) for split in ("train", options.split))
    alone = measured(corpus, known, named(known, test), test)
    print(
        f"names: {row([alone])}, found {precision(known, named(known, test), words, has, test).mean():.3f}", flush=True
    )
    runs: dict[tuple[int, str], list[tuple[Found, float]]] = {}
    for seed in options.seeds:
        drawn = random.Random(f"folder {seed}")
        folder = np.array(drawn.sample(learn.tolist(), 3000))
        captioned = (corpus, known) if options.all_captions else one_caption_each(corpus, known, drawn)
        for rule in options.rules:
            order, maps, images = list[int](), named(known, folder), known["X"][folder, :-1000]
            for size in options.sizes:
                weights = np.ones(len(folder), np.float32)
                if rule == "asked":
                    in_vain = precision(known, maps, words, has, folder) < 0.5
                    weights[ranked(known, maps, words, folder)[:20, in_vain]] = 5
                order += RULES[rule](images, order, size - len(order), f"{rule} {seed}", weights)
                maps = solved(*captioned, folder[order], True, NOISE_FLOOR)
                found = float(precision(known, maps, words, has, test).mean())
                runs.setdefault((size, rule), []).append((measured(corpus, known, maps, test), found))
            print(f"draw {seed}, {rule}", flush=True)
            report(runs)


def report(runs: dict[tuple[int, str], list[tuple[Found, float]]]) -> None:
    """Print the rows, and the difference from the random order of the same draws."""
    for (size, rule), reports in runs.items():
        pairs, found = zip(*reports, strict=True)
        others = [pair for pair, _ in runs[size, "random"]][: len(pairs)]
        print(f"{size:4} {rule:6}: {row(pairs)}, found {np.mean(found):.3f}, {difference(pairs, others)}", flush=True)


def one_caption_each(corpus: Corpus, known: dict[str, Any], drawn: random.Random) -> tuple[Corpus, dict[str, Any]]:
    """Return a corpus with one caption of each image, and the descriptions of these."""
    pairs, kept = corpus.relevance, np.zeros(len(corpus.relevance.images), bool)
    for image in range(len(corpus)):
        kept[drawn.choice(np.flatnonzero(pairs.images == image).tolist())] = True
    numbered = replace(corpus, captions=tuple(map(str, range(len(corpus.captions))))).with_pairs(kept)
    numbers = [int(each) for each in numbered.captions]
    return numbered, {**known, "T": known["T"][numbers]}


def randomly(images: Any, order: list[int], count: int, seed: str, _: Any) -> list[int]:
    """Return the next images in random order."""
    return [each for each in random.Random(seed).sample(range(len(images)), len(images)) if each not in order][:count]


def farthest(images: Any, order: list[int], count: int, seed: str, _: Any) -> list[int]:
    """Return the next images by farthest first."""
    whole = images - images.mean(0)
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    chosen = order or [random.Random(seed).randrange(len(images))]
    near = (whole @ whole[chosen].T).max(1)
    made = [] if order else chosen
    while len(made) < count:
        made = [*made, int(near.argmin())]
        near = np.maximum(near, whole @ whole[made[-1]])
    return made


def most_telling(images: Any, order: list[int], count: int, _: str, weights: Any) -> list[int]:
    """Return the next images by ``next_images``."""
    return next_images(main_directions(images), np.array(order, int), count, weights)


RULES: dict[str, Callable[[Any, list[int], int, str, Any], list[int]]] = {
    "random": randomly,
    "spread": farthest,
    "gain": most_telling,
    "asked": most_telling,
}


def having(corpus: Corpus) -> Any:
    """Return which images have which word in a caption."""
    pairs, has = corpus.relevance, np.zeros((len(corpus), len(WORDS.split("/"))), bool)
    said = [f" {text.lower().replace('.', ' ').replace(',', ' ')} " for text in corpus.captions]
    for number, word in enumerate(WORDS.split("/")):
        has[pairs.images[[f" {word} " in said[text] for text in pairs.texts]], number] = True
    return has


def ranked(known: dict[str, Any], maps: LinearMaps, words: Any, images: Any) -> Any:
    """Return the places of images for each word, best first."""
    found, asked = (known["X"][images] - maps.image_mean) @ maps.image, unit((words - maps.text_mean) @ maps.text)
    return np.argsort(-(unit(found).vectors[:, 0] @ asked.vectors[:, 0].T).numpy(), axis=0)


def precision(known: dict[str, Any], maps: LinearMaps, words: Any, has: Any, images: Any) -> Any:
    """Return the share of the ten best images for each word that have it."""
    return np.take_along_axis(has[images], ranked(known, maps, words, images)[:10], axis=0).mean(0)


def measured(corpus: Corpus, known: dict[str, Any], maps: LinearMaps, test: Any) -> Found:
    """Return the report of some images and their sentences, twice, as ``row`` and ``difference`` take it."""
    member, relevance = member_of(corpus, known, maps, test)
    plain = evaluate_sets(member.images, member.texts, relevance, member.similarity, name="plain")
    return plain, plain


if __name__ == "__main__":
    main(sys.argv[1:])
