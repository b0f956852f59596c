"""Questions about the images of Flickr8k, made from their captions by rules: four times as many as DAQUAR has.

python studies/caption_questions.py FLICKR8K OUT --share 0.1
openvse train score_attention/daquar_grids_cpu data.source=question_folder:OUT data.allow_outside=true

OUT gets ``metadata.jsonl`` and links to the images, whose split is that of Flickr8k. ``--share`` keeps a part of the
training images, drawn with ``--seed``; validation and test stay whole. Three kinds of questions:

- object: "what is running in the grass?" from "A brown dog is running in the grass." (dog)
- color: "what color is the dog?" from the same caption (brown)
- number: "how many dogs are there?" from "Two dogs play." (two)

The rules read word classes (extra ``graphs``) and know nothing of images, so some questions are clumsy, and some
answers are one of several good ones. Captions of one image that lead to the same question give it several answers.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from openvse.datasets import open_corpus
from openvse.tokenization.vocabulary import split_words
from openvse_papers.hgr import tag_words

COLORS = ["red", "blue", "green", "yellow", "black", "white", "brown", "orange", "pink", "purple", "gray", "tan"]
NUMBERS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
NOUNS = {"NOUN", "PROPN"}


class Asked(NamedTuple):
    """A question and what a caption says to it."""

    kind: str
    question: str
    answer: str


def main(arguments: Sequence[str]) -> None:
    """Write the folder, and say what it holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("flickr8k", type=Path, help="folder of the data set")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--share", type=float, default=1.0, help="part of the training images")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of that part")
    options = parser.parse_args(arguments)
    corpus = open_corpus(f"flickr8k:{options.flickr8k}")
    captions: list[list[list[str]]] = [[] for _ in corpus.image_ids]
    for image, text in zip(corpus.relevance.images, corpus.relevance.texts, strict=True):
        captions[image].append(split_words(corpus.captions[text]))
    train = sorted(corpus.split("train").image_ids)
    kept = {*random.Random(options.seed).sample(train, round(options.share * len(train)))}
    counts: Counter[tuple[str, str]] = Counter()
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "metadata.jsonl").open("w") as lines:
        for name, path, split, own in zip(corpus.image_ids, corpus.image_paths, corpus.splits, captions, strict=True):
            if not split or (split == "train" and name not in kept):
                continue
            link = options.out / name
            if not link.exists():
                link.symlink_to(Path(path).resolve())
            for (kind, question), answers in questions_of(own).items():
                counts[split, kind] += 1
                row = {"question": question, "answers": answers, "kind": kind, "split": split}
                lines.write(f"{json.dumps({'file_name': name, **row})}\n")
    for (split, kind), count in sorted(counts.items()):
        print(f"{split:<11} {kind:<7} {count:>7,}")


def questions_of(captions: Sequence[Sequence[str]]) -> dict[tuple[str, str], list[str]]:
    """Return the questions about an image, each with its different answers, those of the most captions first."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for words in captions:
        for asked in dict.fromkeys(ask(words, tag_words(words))):
            found.setdefault((asked.kind, asked.question), Counter())[asked.answer] += 1
    return {key: [answer for answer, _ in answers.most_common()] for key, answers in found.items()}


def ask(words: Sequence[str], tags: Sequence[str]) -> Iterator[Asked]:
    """Yield what a caption answers.

    Args:
        words: its words in lower case.
        tags: their universal classes.
    """
    phrases = [*noun_phrases(tags)]
    heads = Counter(words[end - 1] for _, end in phrases)
    for begin, end in phrases:
        head, before = words[end - 1], words[begin : end - 1]
        if heads[head] > 1:  # "a black dog and a white dog": which one?
            continue
        colors = [word for word in before if word in COLORS]
        if len(colors) == 1:
            verb = "are" if before[0] in NUMBERS else "is"
            yield Asked("color", f"what color {verb} the {head}?", colors[0])
        if before and before[0] in NUMBERS:
            yield Asked("number", f"how many {head} are there?", before[0])
    if not phrases:
        return
    begin, end = phrases[0]
    rest, classes = words[end:], tags[end:]
    starts_caption = all(tag == "DET" for tag in tags[:begin])
    finite = rest[:1] in (["is"], ["are"])
    if starts_caption and len(rest) > 1 and (finite or classes[0] == "VERB"):
        missing = "is " if rest[0].endswith("ing") and not finite else ""
        yield Asked("object", f"what {missing}{' '.join(rest)}?", words[end - 1])


def noun_phrases(tags: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where each run of numerals, adjectives and nouns that ends in a noun begins and ends."""
    at = 0
    while at < len(tags):
        end = at
        while end < len(tags) and tags[end] in {*NOUNS, "ADJ", "NUM"}:
            end += 1
        last = end
        while last > at and tags[last - 1] not in NOUNS:
            last -= 1
        if last > at:
            yield at, last
        at = end + 1


if __name__ == "__main__":
    main(sys.argv[1:])
