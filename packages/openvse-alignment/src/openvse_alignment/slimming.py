"""LAPS (Fu, Zhang, Xia and Mao, CVPR 2024): each sentence chooses patches, and they become a few merged ones."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from openvse.errors import RecipeError
from openvse.functional import MASKED, keep_at_least_one, masked_mean, masked_softmax, normalize
from openvse.fusion.base import Prepared, score_listed, score_pairs
from openvse.objectives import Term
from openvse.similarities import Similarity
from openvse.types import EmbeddingSet, PairWeights, ScoredBatch

_HIDDEN = 0.2  # the width of the hidden layer that merges, as a share of D
_SLOPE = 0.1  # of negative cosines


class PatchSlimming(Similarity):
    """Compares the words of a sentence with the patches that it chooses, merged to a few (LAPS, as released).

    With patches x_n, words t_m and their means, the significance is ``a_n = cos(x_mean, x_n) + cos(t_mean, x_n)``. The
    largest ``ceil(keep N)`` belong to the set S, and

    - ``y_j = sum_{n in S} softmax_n(scale MLP(x_n)_j) x_n`` for J merged patches,
    - ``y_0 = sum_{n not in S} softmax_n(a_n) x_n`` for the rest,
    - ``s = mean_m max_j c_jm + mean_j max_m c_jm``, where c is the cosine of y_j and t_m, times 0.1 if negative.

    A class token is an additional y. The significance has no gradient. It reads tokens that keep their length, so both
    aggregators are ``tokens``. An index cannot serve it: it reranks the hits of an indexable model.

    The MLP reads a patch whatever the sentence, so it is computed once for an image. Pairs are scored tile by tile, and
    those with a gradient are computed again in the backward pass (``score_pairs``).

    Args:
        keep: the share of the patches that a sentence keeps.
        merge: J as a share of the kept patches: ``J = int(num_patches * merge * keep)``, at least 1.
        num_patches: the number of patches of an image, without the class token, which decides J alone.
        class_token: whether the first token of an image stands for the whole.

    Raises:
        RecipeError: a share is not in (0, 1], or there are no patches.
    """

    attends = True
    is_cosine = False
    reads_unit_vectors: ClassVar[bool] = False

    def __init__(
        self,
        *,
        embed_dim: int,
        keep: float = 0.5,
        merge: float = 0.4,
        num_patches: int = 196,
        class_token: bool = False,
    ) -> None:
        super().__init__()
        if not (0 < keep <= 1 and 0 < merge <= 1 and num_patches > 0):
            raise RecipeError(
                f"patch_slimming got keep = {keep}, merge = {merge} and num_patches = {num_patches}: give shares above "
                f"0 up to 1, and at least 1 patch"
            )
        self.keep, self.before = keep, int(class_token)
        hidden, merged = max(1, int(embed_dim * _HIDDEN)), max(1, int(num_patches * merge * keep))
        layers = nn.LayerNorm(embed_dim), nn.Linear(embed_dim, hidden), nn.GELU(), nn.Linear(hidden, merged)
        self.merging, self.scale = nn.Sequential(*layers), nn.Parameter(torch.ones(()))
        self.embed_dim = embed_dim

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        return score_pairs(self, *self.prepare(images, texts))

    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        return score_listed(self, *self.prepare(images, texts), rows, columns)

    def prepare(self, images: EmbeddingSet, texts: EmbeddingSet) -> tuple[Prepared, Prepared]:
        """Do the work that does not depend on the partner: of each patch its MLP and its part of the significance."""
        patches, words = (each.vectors.masked_fill(~each.mask.unsqueeze(-1), 0.0) for each in (images, texts))
        with torch.no_grad():
            whole = masked_mean(patches, self._patches(images.mask)).unsqueeze(1)
            own = (normalize(whole) * normalize(patches)).sum(dim=-1, keepdim=True)
        of_images = torch.cat([patches, self.merging(patches) * self.scale, own], dim=-1)
        return Prepared(of_images.unsqueeze(1), images.mask), Prepared(words.unsqueeze(1), texts.mask)

    def score(self, images: Prepared, texts: Prepared) -> Float[Tensor, "P"]:
        """Score P pairs of what ``prepare`` made: item p of the images with item p of the texts."""
        (patches, logits, _), words = self._parts(images), texts.features[:, 0]
        kept, left, significance = self._chosen(images, texts)
        merged = masked_softmax(logits.mT, kept.unsqueeze(1)) @ patches
        rest = masked_softmax(significance, left).unsqueeze(1) @ patches
        parts = torch.cat([patches[:, : self.before], merged, rest], dim=1)
        exist = [kept.any(dim=1, keepdim=True).expand(merged.shape[:2]), left.any(dim=1, keepdim=True)]
        exists = torch.cat([images.mask[:, : self.before], *exist], dim=1)
        cosines = F.leaky_relu(normalize(words) @ normalize(parts).mT, _SLOPE)
        of_words = cosines.masked_fill(~exists.unsqueeze(1), MASKED).amax(dim=2)
        of_parts = cosines.masked_fill(~texts.mask.unsqueeze(2), MASKED).amax(dim=1)
        return _mean(of_words, texts.mask) + _mean(of_parts, exists)

    def attended(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> PairWeights:
        """Return equal weights for the chosen patches, without a gradient, and for the words of some pairs."""
        of_images, of_texts = self.prepare(images, texts)
        some = of_texts[columns]
        chosen = keep_at_least_one(self._chosen(of_images[rows], some)[0], images.mask[rows]), some.mask
        kept, words = (each.to(images.vectors) / each.sum(dim=1, keepdim=True) for each in chosen)
        return kept.unsqueeze(1), words.unsqueeze(1)

    def _parts(self, images: Prepared) -> tuple[Tensor, ...]:
        """Return the patches, their J logits and their own part of the significance."""
        features = images.features[:, 0]
        return features[..., : self.embed_dim], features[..., self.embed_dim : -1], features[..., -1:]

    def _patches(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Return the mask without the class token."""
        return torch.cat([torch.zeros_like(mask[:, : self.before]), mask[:, self.before :]], dim=1)

    @torch.no_grad()
    def _chosen(
        self, images: Prepared, texts: Prepared
    ) -> tuple[Bool[Tensor, "P N"], Bool[Tensor, "P N"], Float[Tensor, "P N"]]:
        """Return the patches that each sentence keeps and those that it leaves, and the significance of all."""
        patches, _, own = self._parts(images)
        sentence = normalize(masked_mean(texts.features[:, 0], texts.mask)).unsqueeze(1)
        significance = own[..., 0] + (sentence * normalize(patches)).sum(dim=-1)
        real = self._patches(images.mask)
        order = significance.masked_fill(~real, MASKED).argsort(dim=1, descending=True, stable=True)
        kept = order.argsort(dim=1) < (real.sum(dim=1, keepdim=True) * self.keep).ceil()
        return kept, real & ~kept, significance


def _mean(values: Float[Tensor, "P N"], mask: Bool[Tensor, "P N"]) -> Float[Tensor, "P"]:
    return values.masked_fill(~mask, 0.0).sum(dim=1) / mask.sum(dim=1)


class AttendedShare(Term):
    """``(mean_p share_p - share)^2``, where a pair attends to ``share_p = 1 / (N sum_n w_n^2)`` of the N image parts.

    For equal weights, ``share_p`` is the share of the parts that have one. So it is the selection ratio loss of LAPS,
    whose released code weighs it by 2 and which has no gradient there, as the choice is hard. With ``score_attention``
    it has one. All pairs of the batch count, as in the release.

    Args:
        share: the share of an image's parts that a pair should attend to, above 0 up to 1.
        class_token: whether the first part of an image is a class token, which does not count.

    Raises:
        RecipeError: the share is out of range, or, in the forward pass, the similarity does not attend.
    """

    needs_attended: ClassVar[bool] = True

    def __init__(self, *, share: float = 0.5, class_token: bool = False) -> None:
        super().__init__()
        if not 0 < share <= 1:
            raise RecipeError(f"attended_share got share = {share}: give one above 0 up to 1")
        self.share, self.before = share, int(class_token)

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        places = torch.ones_like(batch.positives).nonzero(as_tuple=True)
        weights = batch.attended(*places)
        if weights is None:
            raise RecipeError("attended_share got a similarity that does not attend: use fused or patch_slimming")
        parts = batch.images.mask.sum(dim=1)[places[0]].unsqueeze(1) - self.before
        shares = 1 / (parts * weights[0].square().sum(dim=-1))
        return (shares.mean() - self.share).square()
