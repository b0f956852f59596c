"""Checks of captions in your own data. A further check is a function and an entry in ``CAPTION_CHECKS``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

from openvse.corpus.corpus import Corpus
from openvse.datasets.finding import Finding
from openvse.media.names import escaped

CaptionCheck: TypeAlias = Callable[[Corpus], Finding]
"""A function that checks the captions of a corpus and reports one finding."""

SHORT_LETTERS = 3
"""Captions with fewer letters carry almost no information."""


def identical_captions(corpus: Corpus) -> Finding:
    """Count captions that several images share: training treats the other images as wrong answers."""
    images: defaultdict[str, set[int]] = defaultdict(set)
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        images[corpus.captions[text].casefold()].add(image)
    shared = sorted(
        ((caption, owners) for caption, owners in images.items() if len(owners) > 1),
        key=lambda item: -len(item[1]),
    )
    if not shared:
        return Finding(True, "no two images have the same caption")
    count = len(set().union(*(owners for _, owners in shared)))
    return Finding(
        True,
        f"{count:,} of {len(corpus):,} images share a caption with another one ({len(shared):,} captions)",
        note=True,
        cases=tuple(f"{len(owners)} images: {escaped(caption)}" for caption, owners in shared),
    )


def short_captions(corpus: Corpus) -> Finding:
    """Count captions with very few letters; empty ones are skipped and counted when a corpus is opened."""
    pairs = zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True)
    cases = tuple(
        f"{escaped(corpus.image_ids[image])}: {escaped(corpus.captions[text])}"
        for image, text in pairs
        if sum(map(str.isalnum, corpus.captions[text])) < SHORT_LETTERS
    )
    if not cases:
        return Finding(True, f"no caption has fewer than {SHORT_LETTERS} letters")
    return Finding(
        True, f"{len(cases):,} caption(s) have fewer than {SHORT_LETTERS} letters", note=True, cases=cases
    )


CAPTION_CHECKS: tuple[CaptionCheck, ...] = (identical_captions, short_captions)
"""All checks of captions, in the order of their lines."""
