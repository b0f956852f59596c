"""The identity of the data of a split, by which a continued run recognises its data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from openvse.corpus.corpus import Corpus


@dataclass(frozen=True)
class SplitData:
    """The data of one split.

    Attributes:
        unit: the name of the examples, such as "pairs".
        digest: a hash of the examples: names of images, captions, and whatever else belongs to one.
    """

    unit: str
    images: int
    examples: int
    digest: str

    @property
    def size(self) -> str:
        """The numbers of images and examples in words."""
        return f"{self.images:,} images and {self.examples:,} {self.unit}"

    def values(self) -> dict[str, Any]:
        """Return the identity as the records of a run and a model keep it."""
        return {"images": self.images, self.unit: self.examples, "digest": self.digest}

    @classmethod
    def of_pairs(cls, corpus: Corpus, *, ordered: bool = False) -> SplitData:
        """Return the identity of the pairs of a split. Their order matters for the batches of training."""
        pairs = zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True)
        lines = (f"{corpus.image_ids[image]}\0{corpus.captions[text]}" for image, text in pairs)
        return cls("pairs", len(corpus), len(corpus.relevance.images), digest_of(lines, ordered=ordered))


def digest_of(lines: Iterable[str], *, ordered: bool = True) -> str:
    """Return a hash of lines, or without an order, of the different lines."""
    digest = hashlib.sha256()
    for number, line in enumerate(lines if ordered else sorted(set(lines))):
        digest.update(b"\n" * bool(number) + line.encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]
