"""Terms without negatives to choose: diversity, distances of distributions, correspondence, and matching Gaussians."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from openvse.errors import RecipeError
from openvse.functional import is_full, masked_mean, normalize, pairs_of, places_of
from openvse.objectives.base import Term
from openvse.types import EmbeddingSet, ScoredBatch


class Diversity(Term):
    """Measures how far the residuals of an item are from orthogonal, for images and texts.

    ``L_div = 1/K^2 ( ||G_x - I||_2 + ||G_y - I||_2 )`` (PVSE, eq. 7). G is the Gram matrix of the K residuals of an
    item, scaled to unit length. The norm is the Frobenius norm, averaged over the items. The term acts on residuals
    because the embeddings share the item's global vector and could not be orthogonal. A side whose aggregator does not
    yield residuals adds nothing. At K = 1 the term is 0.

    Raises:
        RecipeError: in the forward pass, if neither side has residuals.
    """

    needs_residual: ClassVar[bool] = True

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Add both sides, which are one batch if they are alike."""
        full = [side.residual for side in (batch.images, batch.texts) if is_full(side.mask)]
        alike = [residual for residual in full if residual is not None]
        if len(alike) == 2 and alike[0].shape == alike[1].shape:
            both = EmbeddingSet.full(torch.cat(alike))
            return self.redundancy(both.vectors, both.mask).sum() / len(alike[0])
        if sides := self.diagnostics(batch):
            return torch.stack(list(sides.values())).sum()
        raise RecipeError(
            "the term acts on residuals, and neither the image nor the text aggregator yields any: "
            "use pie_net or slot_attention on at least one side, or remove the term"
        )

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return the mean redundancy of each side that has residuals."""
        sides = {"images": batch.images, "texts": batch.texts}.items()
        read = {name: (side.residual, side.mask) for name, side in sides if side.residual is not None}
        return {name: self.redundancy(*side).mean() for name, side in read.items()}

    def redundancy(self, residual: Float[Tensor, "B K R"], mask: Bool[Tensor, "B K"]) -> Float[Tensor, "B"]:
        """Return ``||G - I||_F / K^2`` of each item, where K is the number of its embeddings."""
        units = normalize(residual)
        if not is_full(mask):
            units = units.masked_fill(~mask.unsqueeze(-1), 0.0)
        apart = torch.diag_embed(mask.to(units.dtype))
        norms: Tensor = torch.linalg.matrix_norm(torch.baddbmm(apart, units, units.mT, beta=-1))
        return norms / mask.sum(dim=1) ** 2


class SetUniformity(Diversity):
    """Measures how close the residuals of an item are to each other, for images and texts.

    ``L_div = mean over k < l of e^(-2 |r_k - r_l|^2)`` (DivE, Kim et al., CVPR 2023), averaged over the items of a side
    and added over both, where r are the K residuals of an item, scaled to unit length. Opposite residuals also count as
    apart, which ``diversity`` does not reward. Sides without residuals: as for ``diversity``.
    """

    def redundancy(self, residual: Float[Tensor, "B K R"], mask: Bool[Tensor, "B K"]) -> Float[Tensor, "B"]:
        """Average the Gaussians of the pairs of residuals that exist, as ``|r_k - r_l|^2 = 2 - 2 r_k . r_l``."""
        units = normalize(residual)
        pairs = (mask.unsqueeze(1) & mask.unsqueeze(2)).triu(diagonal=1)
        gaussians = torch.exp(4 * (units @ units.mT - 1)).masked_fill(~pairs, 0.0)
        return gaussians.sum(dim=(1, 2)) / pairs.sum(dim=(1, 2)).clamp(min=1)


# A squared distance below this many rounding errors of its terms counts as 0.
ROUNDING = 32.0


class MMD(Term):
    """The squared maximum mean discrepancy between all image embeddings and all text embeddings of a batch.

    ``L_mmd = mean k(x, x') - 2 mean k(x, y) + mean k(y, y')`` (PVSE, section 3.4, and Gretton et al. 2012, the biased
    estimate, which is never negative). The means replace the paper's sums over K^2 N^2 pairs, and stay correct if the
    two sides differ in number. Kernels, with the bandwidth g:

    - ``rbf``: ``e^(-g |x - y|^2)``, the Gaussian that the paper names,
    - ``legacy_exp``: ``e^(-g |x - y|)``, which its released code computes with g = 0.5.

    Distances come from one matrix product, so that memory is bounded by the pairs, not by pairs times D.

    Args:
        kernel: ``rbf`` or ``legacy_exp``.
        gamma: g, above 0.

    Raises:
        RecipeError: gamma is not positive.
    """

    def __init__(self, *, kernel: Literal["rbf", "legacy_exp"] = "rbf", gamma: float = 0.5) -> None:
        super().__init__()
        if gamma <= 0:
            raise RecipeError(f"mmd got gamma = {gamma}: it must be above 0 (usual: 0.5)")
        self.kernel = kernel
        self.gamma = gamma

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        images, texts = (
            side.vectors.flatten(0, 1) if is_full(side.mask) else side.vectors[places_of(side.mask)]
            for side in (batch.images, batch.texts)
        )
        shares = [side.new_full(side.shape[:1], sign / len(side)) for side, sign in ((images, 1), (texts, -1))]
        value: Tensor = _Discrepancy.apply(  # type: ignore[no-untyped-call]
            torch.cat((images, texts)), torch.cat(shares), self.gamma, self.kernel == "rbf"
        )
        return value


class _Discrepancy(torch.autograd.Function):
    """Sums a kernel of all pairs, each times both shares, with a gradient of six operators in place of twenty."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, shares: Tensor, gamma: float, gaussian: bool) -> Tensor:
        products = vectors @ vectors.T
        lengths = products.diagonal().unsqueeze(1) + products.diagonal()
        squares = torch.sub(lengths, products, alpha=2)
        if gaussian:
            slopes = kernel = torch.exp(-gamma * squares.clamp(min=0))
        else:
            # If two vectors are equal, only rounding is left, and the root would magnify it with an unbounded slope.
            equal = squares <= ROUNDING * torch.finfo(squares.dtype).eps * lengths
            distances = squares.masked_fill(equal, 0.0).sqrt()
            kernel = torch.exp(-gamma * distances)
            slopes = (kernel / (2 * distances)).masked_fill(equal, 0.0)
        sums = kernel.mv(shares)
        ctx.gamma = gamma
        ctx.save_for_backward(vectors, shares, slopes, sums if gaussian else slopes.mv(shares))
        return sums.dot(shares)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        """The slope of ``|x - y|^2`` is ``2 (x - y)``, and each pair counts twice."""
        vectors, shares, slopes, sums = ctx.saved_tensors
        pulls = torch.addmm(sums.unsqueeze(1) * vectors, slopes, shares.unsqueeze(1) * vectors, alpha=-1)
        return pulls * (-4 * ctx.gamma * given * shares).unsqueeze(1), None, None, None


class Correspondence(Term):
    """Reconstructs the inputs of a pair from its codes, and pulls the two codes together (Feng, Wang, Li, 2014).

    ``L = (1 - alpha) R + alpha |h_x - h_y|^2``, averaged over the positive pairs (x, y), where h are codes and
    ``R`` is, with a linear decoder for each term,

    - ``own`` (Corr-AE): ``|x - x'(h_x)|^2 + |y - y'(h_y)|^2``,
    - ``other`` (Corr-Cross-AE): ``|x - x'(h_y)|^2 + |y - y'(h_x)|^2``,
    - ``both`` (Corr-Full-AE): the sum of the two.

    No pair is a negative: without R, equal codes would be best.

    Args:
        embed_dim: D, the width of the codes, equal to the recipe's ``embed_dim``.
        image_dim: the width of x, the raw features of images.
        text_dim: the width of y, the raw features of texts.
        reconstruct: which inputs a code reconstructs: ``own``, ``other`` or ``both``.
        alpha: the weight of the distance of the codes, from 0 to 1.

    Raises:
        RecipeError: alpha is not in [0, 1], or the sets of the forward pass carry no source or one of the wrong width.
    """

    needs_source: ClassVar[bool] = True

    def __init__(
        self,
        *,
        embed_dim: int,
        image_dim: int,
        text_dim: int,
        reconstruct: Literal["own", "other", "both"] = "own",
        alpha: float = 0.2,
    ) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise RecipeError(f"correspondence got alpha = {alpha}: give a number from 0 to 1")
        self.alpha = alpha
        own, other = reconstruct != "other", reconstruct != "own"
        self.widths = (image_dim, text_dim)
        self.own = self._decoders(embed_dim) if own else None
        self.other = self._decoders(embed_dim) if other else None

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        rows, columns = pairs_of(batch.positives)
        sides = (self._read(batch.images, 0)[rows], self._read(batch.texts, 1)[columns])
        codes = (_codes(batch.images)[rows], _codes(batch.texts)[columns])
        errors = torch.zeros_like(codes[0][:, 0])
        for decoders, shift in ((self.own, 0), (self.other, 1)):
            for side, decoder in enumerate(decoders or ()):
                errors = errors + (sides[side] - decoder(codes[(side + shift) % 2])).square().sum(dim=1)
        distance = (codes[0] - codes[1]).square().sum(dim=1)
        return ((1 - self.alpha) * errors + self.alpha * distance).mean()

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return the mean squared distance of the codes of a pair."""
        rows, columns = pairs_of(batch.positives)
        difference = _codes(batch.images)[rows] - _codes(batch.texts)[columns]
        return {"distance": difference.square().sum(dim=1).mean()}

    def _decoders(self, embed_dim: int) -> nn.ModuleList:
        return nn.ModuleList(nn.Linear(embed_dim, width) for width in self.widths)

    def _read(self, embeddings: EmbeddingSet, side: int) -> Float[Tensor, "B S"]:
        width, key = self.widths[side], ("image_dim", "text_dim")[side]
        if embeddings.source is None or embeddings.source.shape[1] != width:
            seen = "none" if embeddings.source is None else f"{embeddings.source.shape[1]} wide"
            raise RecipeError(
                f"correspondence reconstructs raw features {width} wide ({key}), but the embeddings carry {seen}: use "
                f"autoencoder on both sides, and set {key} to the width of the features that it reads"
            )
        return embeddings.source.detach()


def _codes(embeddings: EmbeddingSet) -> Float[Tensor, "B D"]:
    """Return the code of each item before it is scaled to unit length."""
    assert embeddings.residual is not None
    return masked_mean(embeddings.residual, embeddings.mask)


class PCMEPP(Term):
    """Separates matching pairs from the others by the distance of their distributions (Chun, ICLR 2024).

    ``L = 2 BCE(y, l) + kl (KL_i + KL_t) + pseudo_positives (BCE(y_i, l) + BCE(y_t, l))``, where

    - ``l = -a csd + b`` are the logits of all pairs of the batch (eq. 2), with a and b learned, and y their labels,
    - ``KL`` is the divergence of the distributions of a side from N(0, 1), averaged over items and dimensions,
    - ``y_i`` also has the label of a positive where an image has a pair whose logit is at least its positive's (section
      3.3, pseudo-positives), and ``y_t`` likewise for a text. Of several positives, the best one counts.

    Deviations: the paper writes sums, and its released code averages, as here. The released code also mixes a quarter
    of the images of a batch in pairs (mixup, CutMix) with soft labels, which this term does not.

    Args:
        scale: a at the beginning.
        shift: b at the beginning.
        kl: the weight of KL.
        pseudo_positives: the weight of the pseudo-positives.
        smoothing: e. Labels are 1 - e and e in place of 1 and 0.

    Raises:
        RecipeError: smoothing is not at least 0 and below 0.5.
    """

    needs_residual: ClassVar[bool] = True
    reads_gaussians: ClassVar[bool] = True

    def __init__(
        self,
        *,
        scale: float = 5.0,
        shift: float = 5.0,
        kl: float = 1e-4,
        pseudo_positives: float = 0.1,
        smoothing: float = 1e-4,
    ) -> None:
        super().__init__()
        if not 0 <= smoothing < 0.5:
            raise RecipeError(f"pcmepp got smoothing = {smoothing:g}: give a number from 0 to below 0.5")
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.shift = nn.Parameter(torch.tensor(float(shift)))
        self.kl, self.pseudo_positives, self.smoothing = kl, pseudo_positives, smoothing

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Add the matching loss, the divergences, and the matching loss of each side with its pseudo-positives."""
        logits, positives = self._logits(batch.scores), batch.positives
        loss = 2 * self._matching(logits, positives)
        if self.kl:
            loss = loss + self.kl * (divergence(batch.images) + divergence(batch.texts))
        if self.pseudo_positives:
            sides = with_pseudo_positives(logits, positives), with_pseudo_positives(logits.T, positives.T).T
            loss = loss + self.pseudo_positives * sum(self._matching(logits, side) for side in sides)
        return loss

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return a, b, the mean uncertainty of both sides, and the number of pseudo-positives of the images."""
        more = with_pseudo_positives(self._logits(batch.scores), batch.positives).sum() - batch.positives.sum()
        uncertainties = {
            name: side.residual[places_of(side.mask)].exp().sum(dim=-1).mean()
            for name, side in (("images", batch.images), ("texts", batch.texts))
            if side.residual is not None
        }
        learned = {"scale": self.scale.detach(), "shift": self.shift.detach()}
        return {**learned, **uncertainties, "pseudo_positives": more.float()}

    def _logits(self, scores: Float[Tensor, "I T"]) -> Float[Tensor, "I T"]:
        """Return ``b - a csd``, from scores that are ``1 - csd / 2``."""
        return 2 * self.scale * (scores - 1) + self.shift

    def _matching(self, logits: Float[Tensor, "I T"], positives: Bool[Tensor, "I T"]) -> Float[Tensor, ""]:
        labels = positives.to(logits.dtype) * (1 - 2 * self.smoothing) + self.smoothing
        return binary_cross_entropy_with_logits(logits, labels)


def divergence(embeddings: EmbeddingSet) -> Float[Tensor, ""]:
    """Return ``KL(N(m, exp z) | N(0, 1)) = mean (m^2 + exp z - z - 1) / 2`` over the items and dimensions."""
    if embeddings.residual is None:
        raise RecipeError("pcmepp reads log-variances: use gaussian on both sides")
    places = places_of(embeddings.mask)
    means = embeddings.vectors[..., :-2][places]
    log_variances = embeddings.residual[places]
    return (means.square().mean() + (log_variances.exp() - log_variances).mean() - 1) / 2


def with_pseudo_positives(logits: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Bool[Tensor, "A C"]:
    """Return the positives, and the candidates of each row whose logit is at least its best positive's."""
    best = logits.masked_fill(~positives, -torch.inf).amax(dim=1, keepdim=True)
    return positives | ((logits >= best) & positives.any(dim=1, keepdim=True))
