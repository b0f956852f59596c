"""How far the probabilities of hits hold for queries of one word, of two words, and for sentences.

``python studies/words_of_hits.py MODEL DATA [FROM:TO [K]]`` searches images of the test split, of which the index
knows the first K captions each, one by default. Queries of one and of two words are drawn from all captions, and an
image is relevant if any of its captions has the words. The sentences are the last captions, each with one relevant
image. For each kind of query it prints mean probability, share of relevant hits and expected calibration error (ten
bins) of the ten best hits, and of these the share of relevant hits that are called unlikely.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import openvse
from openvse.datasets import open_corpus
from openvse.indexing.words import query_words
from openvse.search import Page, SearchEngine

QUERIES, TOP = 200, 10


def bag(caption: str) -> set[str]:
    """Return the words of a caption, folded."""
    return {" ".join(parts) for parts in query_words(caption).values()}


def drawn(captions: Sequence[Sequence[str]], rng: np.random.Generator) -> Iterator[tuple[str, str, set[int]]]:
    """Yield kind, query and the relevant images."""
    bags = [set().union(*map(bag, some)) for some in captions]
    counts = Counter(word for words in bags for word in words)
    common = sorted(word for word, count in counts.items() if 4 <= count <= len(bags) / 2)
    for word in rng.choice(common, min(QUERIES, len(common)), replace=False).tolist():
        yield "one word", word, {at for at, words in enumerate(bags) if word in words}
    for at in rng.integers(len(bags), size=QUERIES).tolist():
        some = sorted(bags[at] & {*common})
        if len(some) > 1:
            pair = rng.choice(some, 2, replace=False).tolist()
            yield "two words", " ".join(pair), {at for at, words in enumerate(bags) if words >= {*pair}}
    for at in rng.integers(len(bags), size=QUERIES).tolist():
        yield "sentence", captions[at][-1], {at}


def write_folder(images: Sequence[object], captions: Sequence[Sequence[str]], folder: Path, known: int) -> list[str]:
    """Write the images and the first captions of each; return the names of the images."""
    folder.mkdir()
    names = []
    with (folder / "metadata.jsonl").open("w") as lines:
        for path, said in zip(images, captions, strict=True):
            names.append(Path(str(path)).name)
            (folder / names[-1]).write_bytes(Path(str(path)).read_bytes())
            lines.write(json.dumps({"file_name": names[-1], "captions": [*said[:known]]}) + "\n")
    return names


def measure(engine: SearchEngine, names: Sequence[str], captions: Sequence[Sequence[str]]) -> None:
    """Print a line for each kind of query."""
    found: dict[str, list[tuple[float | None, bool, str]]] = {}
    asked = [*drawn(captions, np.random.default_rng(0))]
    answers = engine.answer([query for _, query, _ in asked], Page(top_k=TOP))
    for (kind, _, relevant), answer in zip(asked, answers, strict=True):
        right = {names[at] for at in relevant}
        found.setdefault(kind, []).extend((hit.probability, hit.id in right, hit.fit) for hit in answer.hits)
    for kind, hits in found.items():
        known = [(value, is_right, fit) for value, is_right, fit in hits if value is not None]
        if not known:
            print(f"{kind}: no probability is said of any of {len(hits)} hits")
            continue
        values, right = np.array([each[0] for each in known]), np.array([each[1] for each in known])
        bins = np.minimum((10 * values).astype(int), 9)
        inside = [bins == number for number in range(10)]
        error = sum(abs(values[some].mean() - right[some].mean()) * some.mean() for some in inside if some.any())
        unlikely = np.mean([fit == "unlikely" for _, is_right, fit in known if is_right])
        print(
            f"{kind}: mean probability {values.mean():.3f}, relevant {right.mean():.3f}, error {error:.3f}, "
            f"unlikely said of {unlikely:.0%} of the relevant hits; {len(known)} of {len(hits)} hits have one"
        )


def main() -> None:
    model, data, *part = sys.argv[1:]
    begin, end = (int(each) if each else None for each in (part or [":"])[0].split(":"))
    known = int(part[1]) if part[1:] else 1
    corpus = open_corpus(data).split("test")
    captions: list[list[str]] = [[] for _ in range(len(corpus))]
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        captions[image].append(corpus.captions[text])
    images, captions = corpus.image_paths[begin:end], captions[begin:end]
    with tempfile.TemporaryDirectory() as place:
        names = write_folder(images, captions, Path(place, "images"), known)
        openvse.index(model, Path(place, "images"), Path(place, "index"))
        with openvse.open(Path(place, "index")) as engine:
            measure(engine, names, captions)


if __name__ == "__main__":
    main()
