"""Several models that score the same items: the average of their similarity matrices, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.errors import ModelError
from openvse.functional import at_least_single
from openvse.similarities import Similarity
from openvse.types import EmbeddingSet

Scorer = Callable[[EmbeddingSet, EmbeddingSet], Float[Tensor, "I T"]]
"""A similarity: any module or function that scores all pairs."""

_PAIRS_AT_ONCE = 2048


@dataclass(frozen=True)
class Member:
    """One model's embeddings of the items, and the similarity that scores them.

    Attributes:
        images: I embedded images.
        texts: T embedded texts.
        similarity: the function that scores a block of images against a block of texts.
    """

    images: EmbeddingSet
    texts: EmbeddingSet
    similarity: Scorer

    @property
    def device(self) -> torch.device:
        """The device that scores pairs: the similarity's, or for a function the images' device."""
        return self.similarity.device if isinstance(self.similarity, Similarity) else self.images.vectors.device

    @property
    def products(self) -> int:
        """The number of pairs of embeddings behind one score."""
        return self.images.vectors.shape[1] * self.texts.vectors.shape[1]

    def part(self, images: slice, texts: Int[Tensor, "t"]) -> Member:
        """Return some of the images and some of the texts."""
        return replace(self, images=self.images[images], texts=self.texts[texts.to(self.texts.mask.device)])

    def score(self, rows: slice, columns: slice) -> Float[Tensor, "i t"]:
        """Move a block to the device and score it in at least single precision."""
        sides = (some.to(self.device) for some in (self.images[rows], self.texts[columns]))
        return at_least_single(self.similarity(*map(_precise, sides)))

    @torch.inference_mode()
    def score_pairs(
        self, images: Int[Tensor, "P"], texts: Int[Tensor, "P"], count: Callable[[int], None] | None = None
    ) -> Float[Tensor, "P"]:
        """Score listed pairs, some at a time. Each item of such a part is moved to the device once.

        Args:
            images: the image of each pair.
            texts: the text of each pair.
            count: a function to call with the number of pairs that were scored last.

        Raises:
            ModelError: the similarity is a function that scores only whole blocks.
        """
        if not isinstance(self.similarity, Similarity):
            raise ModelError("its similarity scores only whole blocks: give one of pairs, such as fused or set_max")
        parts = []
        for some in zip(torch.split(images, _PAIRS_AT_ONCE), torch.split(texts, _PAIRS_AT_ONCE), strict=True):
            some_images, rows = _distinct(self.images, some[0], self.device)
            some_texts, columns = _distinct(self.texts, some[1], self.device)
            parts.append(at_least_single(self.similarity.pairs(some_images, some_texts, rows, columns)))
            if count is not None:
                count(len(rows))
        return torch.cat(parts)


def mean_scores(members: Sequence[Member], rows: slice, columns: slice) -> Float[Tensor, "i t"]:
    """Average the members' scores of a block: ``s = 1/M sum_m s_m`` (the ensembles of VSE-infinity, Table 2).

    The average is on the device of the first member. Memory holds two blocks at a time for any number of members.
    """
    device = members[0].device
    total = reduce(torch.add, (member.score(rows, columns).to(device) for member in members))
    return total / len(members) if len(members) > 1 else total


def _distinct(
    embedded: EmbeddingSet, positions: Int[Tensor, "P"], device: torch.device | str
) -> tuple[EmbeddingSet, Int[Tensor, "P"]]:
    """Gather each distinct item once, on a device, and return the place of each position among them."""
    distinct, place = torch.unique(positions, return_inverse=True)
    return _precise(embedded[distinct.to(embedded.mask.device)].to(device)), place.to(device)


def _precise(embedded: EmbeddingSet) -> EmbeddingSet:
    """Convert half-precision embeddings to single precision, since coarse scores would make ties."""
    return replace(embedded, vectors=at_least_single(embedded.vectors))
