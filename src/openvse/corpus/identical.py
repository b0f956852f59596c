"""Identical captions of different images: one text that is relevant to all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from openvse.corpus.corpus import Corpus
from openvse.types import Relevance


@dataclass(frozen=True)
class SharedTexts:
    """Texts that are relevant to several images.

    Attributes:
        num_texts: the number of such texts.
        num_images: the number of images that have them as captions.
    """

    num_texts: int
    num_images: int

    @classmethod
    def of(cls, relevance: Relevance) -> SharedTexts:
        """Count the texts that are relevant to several images."""
        shared = np.bincount(relevance.texts, minlength=relevance.num_texts) > 1
        return cls(int(shared.sum()), len(np.unique(relevance.images[shared[relevance.texts]])))

    def describe(self) -> str:
        """Return a line with these numbers, or "" if there are no such texts."""
        if not self.num_texts:
            return ""
        counts = f"{self.num_texts:,}, of {self.num_images:,} images"
        return f"identical captions: {counts}; each counts as relevant to all images that have it"


def merge_identical(corpus: Corpus) -> Corpus:
    """Merge captions that differ at most in case into one text, which is relevant to all images that have it.

    The first spelling of the text is kept. White space does not matter either, since ``build_corpus`` tidies it.
    """
    numbers: dict[str, int] = {}
    kept: list[str] = []
    number_of = np.empty(len(corpus.captions), dtype=np.int64)
    for position, caption in enumerate(corpus.captions):
        number_of[position] = numbers.setdefault(caption.casefold(), len(numbers))
        if len(numbers) > len(kept):
            kept.append(caption)
    if len(kept) == len(corpus.captions):
        return corpus
    pairs = dict.fromkeys(
        zip(corpus.relevance.images.tolist(), number_of[corpus.relevance.texts].tolist(), strict=True)
    )
    images, texts = np.array(list(pairs), dtype=np.int64).T
    relevance = Relevance(images, texts, corpus.relevance.num_images, len(kept))
    return replace(corpus, captions=tuple(kept), relevance=relevance)
