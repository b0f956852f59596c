"""What an objective is made of: terms; and a ranking term, of a miner and a criterion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.types import ScoredBatch


class Term(nn.Module, ABC):
    """One named part of a loss."""

    @abstractmethod
    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Return the term's value for a batch, a scalar with gradient."""


class Miner(nn.Module, ABC):
    """Chooses the negatives of each anchor (a row) among its candidates (the columns)."""

    @torch.no_grad()
    def forward(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Bool[Tensor, "A C"]:
        """Return the chosen negatives: never a positive, and at least one wherever a candidate is left."""
        return self.mine(scores, positives) & ~positives

    @abstractmethod
    def mine(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Bool[Tensor, "A C"]:
        """Choose; called without gradient, and what falls on a positive is dropped."""


class Criterion(nn.Module, ABC):
    """Turns an anchor's positive score and its negatives' scores into a loss."""

    def forward(
        self,
        scores: Float[Tensor, "A C"],
        positives: Bool[Tensor, "A C"],
        negatives: Bool[Tensor, "A C"],
    ) -> Float[Tensor, "P"]:
        """Return one loss for each positive pair; an anchor with several positives has several losses."""
        anchors, candidates = positives.nonzero(as_tuple=True)
        return self.pair_loss(scores[anchors, candidates], scores[anchors], negatives[anchors])

    @abstractmethod
    def pair_loss(
        self,
        positive: Float[Tensor, "P"],
        scores: Float[Tensor, "P C"],
        negatives: Bool[Tensor, "P C"],
    ) -> Float[Tensor, "P"]:
        """Return the loss of each pair from its score, its anchor's scores and its anchor's negatives."""


class Objective(nn.Module):
    """The weighted sum of named terms.

    Args:
        terms: the terms by name.
        weights: the factor of each term, by the same names.
    """

    def __init__(self, terms: dict[str, Term], weights: dict[str, float]) -> None:
        super().__init__()
        self.terms = nn.ModuleDict(terms)
        self.weights = weights

    def forward(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return each weighted term, and their sum as ``loss``."""
        values = {name: self.weights[name] * term(batch) for name, term in self.terms.items()}
        values["loss"] = torch.stack(list(values.values())).sum()
        return values

    @torch.no_grad()
    def at_collapse(self, batch: ScoredBatch) -> float:
        """Return the loss this batch would have if all embeddings were equal (2 * B * margin for a summed hinge)."""
        equal = replace(batch, scores=torch.zeros_like(batch.scores))
        return float(self(equal)["loss"])
