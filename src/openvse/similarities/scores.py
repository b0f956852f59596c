"""The similarities and their base: inner products of two sets of embeddings, order embeddings, fusions by pairs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from openvse.errors import ModelError, RecipeError
from openvse.functional import MASKED, best_of_pairs, best_of_sets, set_max_scores
from openvse.fusion.base import Fusion, Reduced, ScoreAttentionFusion, score_listed, score_pairs
from openvse.registry import Configured, Maker
from openvse.types import EmbeddingSet, PairWeights


class Similarity(Configured, nn.Module, ABC):
    """Scores every image against every text. A pair's score depends only on the embeddings of its two items.

    So the scores can be computed in blocks. Exact search, which scores an index block by block with the model's
    similarity, is correct for every similarity. ``indexable`` promises more, for libraries of inner products.

    The promise holds for one ``forward``. A subclass that overrides ``forward`` does not inherit the promise: without
    its own declaration of ``indexable``, it is not indexable.

    Embeddings are scored on the device of the similarity, which moves with its model, whether or not it has weights.

    Attributes:
        indexable: True when the scores rank like the largest inner product between single embeddings of
            the two items, so that an inner-product search over single embeddings finds exactly the best items.
        near_maximum: True when the score is near the largest inner product. An inner-product search then proposes good
            items, and the score puts them in order.
        is_cosine: True when the score of two items with one embedding each is their cosine. An option may decide it.
        reads_unit_vectors: True when the similarity compares only embeddings of unit length.
        reads_gaussians: True when the embeddings must be distributions (``Aggregator.yields_gaussian``).
        attends: True when it weighs the embeddings of both sides for each pair, which ``attended`` shows.
    """

    indexable: ClassVar[bool] = False
    near_maximum: ClassVar[bool] = False
    is_cosine: bool = True
    reads_unit_vectors: ClassVar[bool] = True
    reads_gaussians: ClassVar[bool] = False
    attends: bool = False

    _place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_place", torch.empty(0), persistent=False)

    @property
    def device(self) -> torch.device:
        """The device to which the similarity was moved."""
        return self._place.device

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        nearest = next(base for base in cls.__mro__ if {"forward", "indexable"} & vars(base).keys())
        if "indexable" not in vars(nearest):  # the subclass overrides forward without its own promise
            cls.indexable, cls.near_maximum = False, vars(nearest).get("near_maximum", False)

    def __call__(self, images: object, texts: object) -> Float[Tensor, "I T"]:
        """Score all pairs, by ``forward``.

        Raises:
            ModelError: the images or the texts are no embeddings.
        """
        self.check(images, texts)
        return cast(Tensor, super().__call__(images, texts))

    @staticmethod
    def check(*given: object) -> None:
        """Raise ModelError unless all are embeddings."""
        for each in given:
            if not isinstance(each, EmbeddingSet):
                raise ModelError(f"embeddings are compared, got {type(each).__name__}: encode images and texts first")

    @abstractmethod
    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs. Embeddings that a mask excludes never count."""

    @abstractmethod
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        """Score some pairs without a gradient: image ``rows[p]`` with text ``columns[p]``."""

    def attended(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> PairWeights | None:
        """Return the weight of each embedding in the k comparisons of some pairs, which sum to 1, with a gradient.

        None if it weighs none. Memory holds these pairs.
        """
        return None


def score_blocks(
    similarity: Similarity, images: EmbeddingSet, texts: EmbeddingSet, block_size: int = 1024
) -> Iterator[tuple[slice, slice, Float[Tensor, "i t"]]]:
    """Yield the score matrix in blocks of at most ``block_size`` per side, as (image rows, text rows, scores).

    Memory is bounded by the block, whatever I and T are.
    """
    with torch.inference_mode():
        for rows in slices(len(images), block_size):
            for columns in slices(len(texts), block_size):
                yield rows, columns, similarity(images[rows], texts[columns])


def slices(count: int, size: int) -> list[slice]:
    """Return the blocks of a number of items. The last one may be smaller."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


class SetMax(Similarity):
    """``s(V, T) = max_{k,l} cos(v_k, t_l)`` (PVSE section 3.2, MV-VSE eq. 6), which is the plain cosine at K = 1.

    Its exact candidates come from one inner-product search per embedding, fused by maximum.
    """

    indexable: ClassVar[bool] = True

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        return set_max_scores(images, texts)

    @torch.no_grad()
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        products = images.vectors[rows] @ texts.vectors[columns].transpose(1, 2)
        return best_of_pairs(products, images.mask[rows], texts.mask[columns])


class CSD(SetMax):
    """``s(i, t) = 1 - csd(i, t) / 2``, the score of the embeddings that ``gaussian`` makes.

    ``csd(i, t) = |m_i - m_t|^2 + sum_d (exp z_id + exp z_td)`` is the expected squared distance of samples of the two
    distributions (PCME++, Chun, ICLR 2024, eq. 1). The score is the inner product of ``[m_i, u_i, 1]`` and
    ``[m_t, 1, u_t]``. Without variance it is the cosine of the means.
    """

    indexable: ClassVar[bool] = True
    is_cosine = False
    reads_unit_vectors: ClassVar[bool] = False
    reads_gaussians: ClassVar[bool] = True


class ScaledCosine(SetMax):
    """The scores of ``set_max``, with the scale and bias that turn them into a published dual encoder's logits.

    A score is still the cosine. A scale above 0 and a bias do not change a ranking, and objectives and thresholds
    keep their meaning. ``logits`` returns ``scale * s + bias``, the logits of CLIP (Radford et al., 2021, figure 3)
    or SigLIP (Zhai et al., 2023, section 3.2), from which probabilities are computed.

    Args:
        scale: the factor of the cosine, which is the inverse of a temperature.
        bias: the number added to the product.
        link: the function from logits to probabilities: ``sigmoid`` for each pair separately (SigLIP), or ``softmax``
            over the candidates of a query (CLIP).

    Raises:
        RecipeError: the scale is not above 0, or one of the numbers is not finite.
    """

    indexable: ClassVar[bool] = True

    def __init__(
        self, *, scale: float = 1.0, bias: float = 0.0, link: Literal["sigmoid", "softmax"] = "softmax"
    ) -> None:
        super().__init__()
        if not (math.isfinite(scale) and math.isfinite(bias) and scale > 0):
            raise RecipeError(f"scale is {scale} and bias {bias}: give a finite scale above 0, and a finite bias")
        self.scale, self.bias, self.link = scale, bias, link

    def logits(self, scores: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return ``scale * s + bias`` for any scores of this similarity."""
        return self.scale * scores + self.bias


class SmoothChamfer(Similarity):
    """Smooth-Chamfer similarity of K embeddings v_k and L embeddings t_l (DivE, Kim et al., CVPR 2023).

    ``s = 1/(2 a K) sum_k log sum_l e^(a c_kl) + 1/(2 a L) sum_l log sum_k e^(a c_kl)``, where ``c_kl = cos(v_k, t_l)``:
    the soft maximum of each embedding, averaged over both sides. So every embedding gets a gradient, where ``set_max``
    gives one to the best pair alone. At K = L = 1 it is the cosine. Chamfer similarity is the limit for large a.

    A store of vectors proposes items by the largest inner product m, and the score puts them in order. With
    ``h = log(K L) / (2 a)``, which is 0.087 for K = L = 4 and a = 16, ``mean_kl c_kl + h <= s <= m + h``, as each soft
    maximum is at most its maximum, and at least its mean, plus the logarithm of its count over a.

    Args:
        sharpness: a. 16 in the released code. None takes the maxima: Chamfer similarity, ``chamfer`` in recipes.

    Raises:
        RecipeError: the sharpness is not above 0.
    """

    indexable: ClassVar[bool] = False
    near_maximum: ClassVar[bool] = True

    def __init__(self, *, sharpness: float | None = 16.0) -> None:
        super().__init__()
        if sharpness is not None and not (sharpness > 0 and math.isfinite(sharpness)):
            raise RecipeError(f"smooth_chamfer got sharpness = {sharpness}: it must be above 0 (usual: 16)")
        self.sharpness = sharpness

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        # The short axes come first, so that the reductions run along the long ones.
        cosines = images.vectors.transpose(0, 1).unsqueeze(1) @ texts.vectors.transpose(0, 1).mT
        return self._reduced(cosines, images.mask.T[:, None, :, None], texts.mask.T[None, :, None])

    @torch.no_grad()
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        products = images.vectors[rows] @ texts.vectors[columns].mT
        of_images, of_texts = images.mask[rows].T.unsqueeze(1), texts.mask[columns].T.unsqueeze(0)
        return self._reduced(products.permute(1, 2, 0), of_images, of_texts)

    def _reduced(
        self, cosines: Float[Tensor, "K L *p"], images: Bool[Tensor, "K 1 *i"], texts: Bool[Tensor, "1 L *t"]
    ) -> Float[Tensor, "*p"]:
        """Average the soft maxima of the embeddings that exist, over both sides."""
        rows = self._soft_maximum(cosines, texts, 1).masked_fill(~images.squeeze(1), 0.0).sum(dim=0)
        columns = self._soft_maximum(cosines, images, 0).masked_fill(~texts.squeeze(0), 0.0).sum(dim=0)
        return (rows / images.sum(dim=(0, 1)) + columns / texts.sum(dim=(0, 1))) / 2

    def _soft_maximum(self, cosines: Tensor, exists: Tensor, axis: int) -> Tensor:
        cosines = cosines.masked_fill(~exists, MASKED)
        if self.sharpness is None:
            return cosines.amax(dim=axis)
        return (self.sharpness * cosines).logsumexp(dim=axis) / self.sharpness


# The number of differences in memory at a time, such that they fit a CPU's cache.
_DIFFERENCES = 1 << 18


class Order(Similarity):
    """``s(i, t) = -|max(0, |t| - |i|)|^2`` (Vendrov et al., Order-Embeddings of Images and Language, ICLR 2016, eq. 2).

    A text is more general than its image: none of its coordinates should exceed the image's, and any excess is
    penalised. The embeddings are unit vectors with absolute values, as in the paper, so that scores lie between -1 and
    0. They are not symmetric. The paper has one embedding per item. With several, the best pair counts, as in
    ``set_max``.
    """

    indexable: ClassVar[bool] = False
    is_cosine = False

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs. Memory holds the scores and a tile of the differences, not all I x T x D."""
        general, specific = texts.vectors.flatten(0, 1).abs(), images.vectors.flatten(0, 1).abs()
        violations: Tensor = _Violations.apply(specific, general)  # type: ignore[no-untyped-call]
        return best_of_sets(-violations, images.mask, texts.mask)

    @torch.no_grad()
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        specific, general = images.vectors[rows].abs().unsqueeze(2), texts.vectors[columns].abs().unsqueeze(1)
        violations = (general - specific).clamp_(min=0).square_().sum(dim=-1)
        return best_of_pairs(-violations, images.mask[rows], texts.mask[columns])


class _Violations(torch.autograd.Function):
    """``|max(0, t - i)|^2`` of all pairs. The backward pass recomputes the differences instead of keeping them."""

    @staticmethod
    def forward(ctx: Any, images: Float[Tensor, "A D"], texts: Float[Tensor, "C D"]) -> Float[Tensor, "A C"]:
        ctx.save_for_backward(images, texts)
        violations = images.new_empty(len(images), len(texts))
        for rows, columns, excess in _tiles(images, texts):
            violations[rows, columns] = excess.square_().sum(dim=-1)
        return violations

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "A C"]) -> tuple[Tensor, Tensor]:
        images, texts = ctx.saved_tensors
        of_images, of_texts = torch.zeros_like(images), torch.zeros_like(texts)
        for rows, columns, excess in _tiles(images, texts):
            slopes = excess.mul_(2 * gradient[rows, columns].unsqueeze(-1))
            of_images[rows] -= slopes.sum(dim=1)
            of_texts[columns] += slopes.sum(dim=0)
        return of_images, of_texts


def _tiles(
    images: Float[Tensor, "A D"], texts: Float[Tensor, "C D"]
) -> Iterator[tuple[slice, slice, Float[Tensor, "a c D"]]]:
    """Yield ``max(0, t - i)`` for some images and some texts at a time."""
    side = max(1, math.isqrt(_DIFFERENCES // images.shape[1]))
    for rows in slices(len(images), side):
        for columns in slices(len(texts), side):
            yield rows, columns, (texts[columns] - images[rows].unsqueeze(1)).clamp_(min=0)


class Fused(Similarity):
    """The mean cosine of the vectors to which a fusion reduces an image and a text (score attention, section IV-B).

    It reads sets of tokens, so both aggregators are ``tokens``. An index cannot serve it: an indexable model proposes
    items, and this one reranks them (``openvse search --rerank``).

    Args:
        fusion: the fusion that computes the vectors of a pair.
    """

    indexable: ClassVar[bool] = False
    is_cosine = False
    reads_unit_vectors: ClassVar[bool] = False

    def __init__(self, *, embed_dim: int, fusion: Maker[Fusion] = ScoreAttentionFusion) -> None:
        super().__init__()
        self.fusion = fusion(embed_dim=embed_dim)
        self.attends = self.fusion.attends

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs. See ``score_pairs`` for time and memory."""
        return score_pairs(self.fusion, *self.fusion.prepare(images, texts))

    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        """Score some pairs. Each image and each text is prepared once."""
        return score_listed(self.fusion, *self.fusion.prepare(images, texts), rows, columns)

    def attended(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> PairWeights | None:
        of_images, of_texts = self.fusion.prepare(images, texts)
        reduced: Reduced = self.fusion(of_images[rows], of_texts[columns])
        return reduced.weights
