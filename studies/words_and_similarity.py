"""What words add to similarity: half of the images of a split are indexed with a caption, and the others are asked.

python studies/words_and_similarity.py MODEL flickr8k:FOLDER [--features STORE] [--split test] [--seeds 0 1 2]

The index holds all images of the split; each seed draws which of them carry a caption, and which one. The queries are
all other captions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import openvse
from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.features.extract import StoredFeatures, find_stored_features
from openvse.indexing import Index, build_index
from openvse.output.table import Table
from openvse.runtime.arrays import ArraySet
from openvse.search import SearchEngine
from openvse.search.exact import Ranking, embed_queries, joined
from openvse.search.query import Query

RECALLS = (1, 5, 10)
QUERIES = 256  # at once


def drawn(corpus: Corpus, seed: int) -> dict[int, int]:
    """Return the caption of each image that carries one: of half of the images, one each."""
    draw = np.random.default_rng(seed)
    pairs: dict[int, list[int]] = {}
    for image, text in zip(corpus.relevance.images, corpus.relevance.texts, strict=True):
        pairs.setdefault(int(image), []).append(int(text))
    chosen = draw.permutation(len(corpus.image_ids))[: len(corpus.image_ids) // 2].tolist()
    return {image: int(draw.choice(pairs[image])) for image in sorted(chosen)}


def indexed(
    model: openvse.TwoTower, corpus: Corpus, folder: Path, carried: dict[int, int], stored: StoredFeatures | None
) -> Index:
    """Index the images of a corpus, of which some carry a caption."""
    said = ({"file_name": corpus.image_ids[image], "caption": corpus.captions[text]} for image, text in carried.items())
    (folder / "images" / "metadata.jsonl").write_text("\n".join(map(json.dumps, said)))
    build_index(model, folder / "images", folder / "index", stored=stored)
    return Index.open(folder / "index")


def rank_of(position: int, ranking: Ranking) -> int:
    """Return the rank of an item; 0 where it is not found."""
    return next(iter(np.flatnonzero(ranking.positions == position) + 1), 0)


def ranks(engine: SearchEngine, corpus: Corpus, carried: dict[int, int]) -> dict[str, np.ndarray]:
    """Return the rank of the image of each query (0 where it is not found) by similarity, by words, and joined."""
    catalogue, used = engine.catalogue, set(carried.values())

    def embed(captions: Sequence[Any]) -> ArraySet:
        return engine._asked(engine._model.encode_text([*captions]), are_texts=True)

    asked = [
        (corpus.captions[text], corpus.image_ids[image])
        for image, text in zip(corpus.relevance.images, corpus.relevance.texts, strict=True)
        if int(text) not in used
    ]
    found: dict[str, list[int]] = {name: [] for name in ("similarity", "words", "joined")}
    for start in range(0, len(asked), QUERIES):
        some = asked[start : start + QUERIES]
        queries = embed_queries([Query(text) for text, _ in some], embed, embed, embed)
        rows = zip(*catalogue.nearest(queries, len(catalogue), ()), strict=True)
        for (text, name), (scores, positions) in zip(some, rows, strict=True):
            own, said = catalogue.position(name), catalogue.words(text, ())
            assert said is not None
            by_position = np.empty_like(scores)
            by_position[positions] = scores
            similar = Ranking.by_similarity(scores, positions)

            def best(some: np.ndarray, most: int, known: np.ndarray = by_position) -> tuple[np.ndarray, np.ndarray]:
                places = np.argsort(-known[some], kind="stable")[:most]
                return known[some][places], places

            alone = joined(said, similar.some(np.arange(0)), best)
            found["similarity"].append(rank_of(own, similar))
            found["words"].append(rank_of(own, alone))
            found["joined"].append(rank_of(own, joined(said, similar, best) if said else similar))
    return {name: np.array(numbers) for name, numbers in found.items()}


def main() -> None:
    """Measure, and print the mean recalls and their spread over the seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("data")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    model, corpus = openvse.load(options.model), open_corpus(options.data).split(options.split)
    stored = find_stored_features(model, options.model, options.features)
    recalls: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "images").mkdir()
        for name, path in zip(corpus.image_ids, corpus.image_paths, strict=True):
            (Path(place) / "images" / name).symlink_to(Path(str(path)).resolve())
        for seed in options.seeds:
            carried = drawn(corpus, seed)
            with SearchEngine(model, indexed(model, corpus, Path(place), carried, stored)) as engine:
                for name, numbers in ranks(engine, corpus, carried).items():
                    some = [100 * float(((numbers > 0) & (numbers <= most)).mean()) for most in RECALLS]
                    recalls.setdefault(name, []).append(some)
    rows = [
        (name, *(f"{mean:.1f} ± {spread:.1f}" for mean, spread in zip(np.mean(some, 0), np.std(some, 0), strict=True)))
        for name, some in recalls.items()
    ]
    print(f"{options.split}, {len(corpus.image_ids)} images, seeds {options.seeds}")
    print(Table(["ranking", *(f"R@{most}" for most in RECALLS)], rows).to_markdown())


if __name__ == "__main__":
    main()
