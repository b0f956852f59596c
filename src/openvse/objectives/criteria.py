"""Criteria: the loss of a positive pair, given the negatives of its anchor."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import MASKED
from openvse.objectives.base import Criterion


class Hinge(Criterion):
    """``sum_n [margin - s_p + s_n]_+`` over an anchor's negatives n (VSE++; VSE-infinity, eq. 1).

    Args:
        margin: how much larger the score of the positive must be.
        reduction: the sum or the mean over an anchor's negatives; PVSE averages (section 3.4).
    """

    def __init__(self, *, margin: float = 0.2, reduction: Literal["sum", "mean"] = "sum") -> None:
        super().__init__()
        self.margin = margin
        self.reduction = reduction

    def pair_loss(
        self, positive: Float[Tensor, "P"], scores: Float[Tensor, "P C"], negatives: Bool[Tensor, "P C"]
    ) -> Float[Tensor, "P"]:
        violations = (self.margin - positive.unsqueeze(1) + scores).clamp(min=0)
        total = violations.masked_fill(~negatives, 0.0).sum(dim=1)
        return total if self.reduction == "sum" else total / negatives.sum(dim=1).clamp(min=1)

    @torch.no_grad()
    def violated(self, positive: Float[Tensor, "P"], scores: Float[Tensor, "P C"]) -> Bool[Tensor, "P C"]:
        """Return the candidates whose score is closer to the positive's than the margin."""
        return self.margin - positive.unsqueeze(1) + scores > 0


class InfoNCE(Criterion):
    """``-log( e^(s_p/t) / (e^(s_p/t) + sum_n e^((s_n + m)/t)) )`` (van den Oord et al. 2018; CLIP; VSE+2AD).

    AdOpt (VSE+2AD) is the miner ``adaptive_top_k`` with this criterion; ``AdaptiveTopK`` shows the recipe.

    Deviation: VSE+2AD prints the sum without the positive and without a margin; its released code has both, with
    m = 0.2. The paper and the code use t = 0.05.

    Args:
        temperature: t, the number that divides the scores.
        learned: whether to train t, starting from ``temperature``; t is kept at 0.01 or above, as in CLIP.
        margin: m, the number that is added to the negatives' scores.

    Raises:
        RecipeError: the temperature is not positive.
    """

    MIN_TEMPERATURE = 0.01

    def __init__(self, *, temperature: float = 0.05, learned: bool = False, margin: float = 0.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise RecipeError(
                f"info_nce got temperature = {temperature}: it must be above 0 (usual: 0.01 to 0.1)"
            )
        start = torch.tensor(math.log(1.0 / temperature))
        self.learned = learned
        self.margin = margin
        self.log_scale: Tensor
        if learned:
            self.log_scale = nn.Parameter(start)
        else:
            self.register_buffer("log_scale", start)

    def pair_loss(
        self, positive: Float[Tensor, "P"], scores: Float[Tensor, "P C"], negatives: Bool[Tensor, "P C"]
    ) -> Float[Tensor, "P"]:
        """Compute ``logsumexp(positive and negatives) - positive`` at the temperature, without overflow."""
        log_scale = self.log_scale
        if self.learned:
            log_scale = log_scale.clamp(max=-math.log(self.MIN_TEMPERATURE))
        scale = log_scale.exp().to(scores.dtype)
        others = ((scores + self.margin) * scale).masked_fill(~negatives, MASKED)
        joint = torch.cat([(positive * scale).unsqueeze(1), others], dim=1)
        return joint.logsumexp(dim=1) - joint[:, 0]
