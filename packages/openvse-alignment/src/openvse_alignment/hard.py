"""CHAN (Pan, Wu and Zhang, CVPR 2023): each word takes its best region, and the words are reduced to one score."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from openvse.encoders.projections import Projection
from openvse.errors import RecipeError
from openvse.functional import MASKED, normalize
from openvse.layers.attention import check_heads, xavier_linear
from openvse.objectives import Criterion, Miner
from openvse.objectives.base import RankingTerm
from openvse.similarities import Similarity
from openvse.similarities.scores import slices
from openvse.types import EmbeddingSet, ScoredBatch

_PRODUCTS = 1 << 24  # inner products in memory at a time, 64 MiB: smaller tiles cost time


class MaxSim(Similarity):
    """Each embedding of a text takes its best embedding of the image: ``m_l = max_k cos(v_k, t_l)``.

    CHAN (section 3) calls this hard assignment coding, where v are regions and t words. The score is

    - ``lse``: ``log sum_l e^(m_l / temperature)``, as CHAN's released code computes it for a GRU. It grows with the
      number of words, and a step of 0.1 of a cosine is a step of 1.
    - ``mean``: the mean of m, as it computes it for BERT.
    - ``sum``: the sum of m, which AVSE takes over blocks.

    A store of vectors proposes the images with the largest single product, and the score puts them in order. Memory
    holds the maxima, ``[I, T, L]``, and a tile of the products.

    Args:
        reduction: how the maxima of a text become one score.
        temperature: the divisor of the maxima in ``lse``.

    Raises:
        RecipeError: the temperature is not above 0.
    """

    indexable = False
    near_maximum = True

    def __init__(self, *, reduction: Literal["lse", "mean", "sum"] = "lse", temperature: float = 0.1) -> None:
        super().__init__()
        if not (temperature > 0 and math.isfinite(temperature)):
            raise RecipeError(f"max_sim got temperature = {temperature}: it must be above 0 (usual: 0.1)")
        self.reduction, self.temperature = reduction, temperature
        self.is_cosine = reduction != "lse"

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        best: Tensor = _Best.apply(images.vectors, images.mask, texts.vectors)  # type: ignore[no-untyped-call]
        return self._reduced(best, texts.mask)

    @torch.no_grad()
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        scores = [images.vectors.new_empty(0)]
        for some in slices(len(rows), max(1, _PRODUCTS // (images.vectors[0].numel() + texts.vectors[0].numel()))):
            of_images, of_texts = images[rows[some]], texts[columns[some]]
            products = of_images.vectors @ of_texts.vectors.mT
            best = products.masked_fill(~of_images.mask.unsqueeze(2), MASKED).amax(dim=1)
            scores.append(self._reduced(best, of_texts.mask))
        return torch.cat(scores)

    def _reduced(self, best: Float[Tensor, "*p L"], mask: Bool[Tensor, "*t L"]) -> Float[Tensor, "*p"]:
        """Reduce the maxima of the embeddings that exist to a score."""
        if self.reduction == "lse":
            return (best / self.temperature).masked_fill(~mask, MASKED).logsumexp(dim=-1)
        total = best.masked_fill(~mask, 0.0).sum(dim=-1)
        return total if self.reduction == "sum" else total / mask.sum(dim=-1)


class _Best(torch.autograd.Function):
    """``max_k v_ik . t_tl`` of all images and texts. The gradient goes to the one product that was largest."""

    @staticmethod
    def forward(
        ctx: Any, images: Float[Tensor, "I K D"], mask: Bool[Tensor, "I K"], texts: Float[Tensor, "T L D"]
    ) -> Float[Tensor, "I T L"]:
        words = texts.flatten(0, 1)
        best = images.new_empty(len(images), len(words))
        place = torch.empty_like(best, dtype=torch.int64)
        with torch.autocast(images.device.type, enabled=False):  # bf16 has steps of 0.004 near 1
            for rows in _tiles(images, words):
                products = (images[rows] @ words.T).masked_fill_(~mask[rows].unsqueeze(-1), MASKED)
                best[rows], place[rows] = products.max(dim=1)
        ctx.save_for_backward(images, texts, place)
        return best.view(len(images), *texts.shape[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "I T L"]) -> tuple[Tensor, None, Tensor]:
        images, texts, place = ctx.saved_tensors
        words, slopes = texts.flatten(0, 1), gradient.flatten(1)
        of_images, of_words = torch.empty_like(images), torch.zeros_like(words)
        for rows in _tiles(images, words):
            chosen = slopes.new_zeros(*images[rows].shape[:2], len(words))
            chosen.scatter_(1, place[rows].unsqueeze(1), slopes[rows].unsqueeze(1))
            of_images[rows] = chosen @ words
            of_words += chosen.flatten(0, 1).T @ images[rows].flatten(0, 1)
        return of_images, None, of_words.view_as(texts)


def _tiles(images: Float[Tensor, "I K D"], words: Float[Tensor, "W D"]) -> list[slice]:
    """Return slices of images whose products with all words fit in memory."""
    return slices(len(images), max(1, _PRODUCTS // max(1, images.shape[1] * len(words))))


class SelfAttention(Projection):
    """``z_n = y_n + sum_h W_h softmax(q_hn . k_hm / sqrt(d)) v_hm`` with ``y = W x + b``, CHAN's regions with a GRU.

    Queries, keys and values are linear in ``LN(y)``, d is the width of a head. Deviation: in the released code regions
    also attend to the padding of the batch, which begins where regions were dropped. Here padding has no weight.

    Args:
        num_heads: the number of heads, which divides D.

    Raises:
        RecipeError: the number of heads does not divide D.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, num_heads: int = 8) -> None:
        super().__init__(input_dim=input_dim, output_dim=embed_dim)
        check_heads(embed_dim, num_heads)
        self.linear = xavier_linear(input_dim, embed_dim)
        self.norm = nn.LayerNorm(embed_dim)
        self.attention = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
        projected: Tensor = self.linear(local.masked_fill(~mask.unsqueeze(-1), 0.0))
        normed = self.norm(projected)
        read = self.attention(normed, normed, normed, key_padding_mask=~mask, need_weights=False)[0]
        attended: Tensor = projected + read
        return attended


class LocalContrast(RankingTerm):
    """Ranks by the local features behind the embeddings, as CHAN does with ``mean``, beside a ranking term of these.

    ``L = sum_(i,t) [ l(s_it, S_i.) + l(s_it, S_.t) ]`` with ``s = mean_l max_k cos(v_k, t_l)`` of regions and words. So
    words learn to find their regions, and an index still holds one embedding of an image.

    Raises:
        RecipeError: in the forward pass, the local features of images and texts have different widths.
    """

    needs_local: ClassVar[bool] = True

    def __init__(self, *, miner: Miner, criterion: Criterion, reduction: Literal["sum", "mean"] = "sum") -> None:
        super().__init__(miner=miner, criterion=criterion, reduction=reduction)
        self.similarity = MaxSim(reduction="mean")

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        return self.both_ways(self._scores(batch), batch.positives)

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        return super().diagnostics(replace(batch, scores=self._scores(batch)))

    def _scores(self, batch: ScoredBatch) -> Float[Tensor, "I T"]:
        images, texts = batch.images.local, batch.texts.local
        assert images is not None and texts is not None  # needs_local
        if (width := images.vectors.shape[2]) != texts.vectors.shape[2]:
            raise RecipeError(
                f"local_contrast got local features {width} wide of images and {texts.vectors.shape[2]} wide of texts: "
                f"give both encoders a projection other than none"
            )
        regions, words = (replace(each, vectors=normalize(each.vectors)) for each in (images, texts))
        scores: Tensor = self.similarity(regions, words)
        return scores
