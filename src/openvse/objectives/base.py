"""The components of an objective: terms, and ranking terms, which consist of a miner and a criterion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import indices, of_values, pairs_of, rows_at
from openvse.types import EmbeddingSet, ScoredBatch, changed

_ROUNDING = 1e-6  # a term below this share of the term it is relative to is not scaled


class Term(nn.Module, ABC):
    """One named part of a loss.

    Attributes:
        needs_residual: True when the term acts on the residuals of the images, the texts or both.
        scores_views: True when the term scores each view of an image separately, as a cosine. Every image must then
            have the same number of views, and the model's similarity must be the cosine too.
        needs_source: True when the term reads the sources of the images and of the texts.
        reads_gaussians: True when the embeddings must be distributions, and their similarity ``csd``.
        needs_local: True when the term reads the local features, ``EmbeddingSet.local``.
        needs_unscaled: True when the term reads vectors before they are scaled to unit length, ``unscaled``.
        needs_attended: True when the term reads ``ScoredBatch.attended``, so that the similarity must attend.
    """

    needs_residual: ClassVar[bool] = False
    scores_views: ClassVar[bool] = False
    needs_source: ClassVar[bool] = False
    reads_gaussians: ClassVar[bool] = False
    needs_local: ClassVar[bool] = False
    needs_unscaled: ClassVar[bool] = False
    needs_attended: ClassVar[bool] = False

    @abstractmethod
    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Return the term's value for a batch, a scalar with a gradient."""

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return numbers for the log, which do not change the loss. Called without a gradient."""
        return {}


class Miner(nn.Module, ABC):
    """Chooses the negatives of each anchor (a row) from its candidates (the columns)."""

    @torch.no_grad()
    def forward(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Bool[Tensor, "A C"]:
        """Return the chosen negatives: never a positive, and at least one if any candidate is negative."""
        return self.mine(scores, positives) > positives

    @abstractmethod
    def mine(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Bool[Tensor, "A C"]:
        """Choose candidates. Called without a gradient. Chosen positives are dropped."""

    def diagnostics(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> dict[str, Float[Tensor, ""]]:
        """Return numbers for the log that explain the choice."""
        return {}


class Criterion(nn.Module, ABC):
    """Turns the score of an anchor's positive and the scores of its negatives into a loss."""

    def forward(
        self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"], negatives: Bool[Tensor, "A C"]
    ) -> Float[Tensor, "P"]:
        """Return a loss for each positive pair. An anchor with several positives has several losses."""
        anchors, candidates = pairs_of(positives)
        return self.at(scores, anchors, candidates, negatives)

    def at(
        self,
        scores: Float[Tensor, "A C"],
        anchors: Int[Tensor, "P"],
        candidates: Int[Tensor, "P"],
        negatives: Bool[Tensor, "A C"],
    ) -> Float[Tensor, "P"]:
        """Return the loss of each pair of an anchor and its positive candidate."""
        return self.pair_loss(scores[anchors, candidates], rows_at(scores, anchors), rows_at(negatives, anchors))

    @abstractmethod
    def pair_loss(
        self, positive: Float[Tensor, "P"], scores: Float[Tensor, "P C"], negatives: Bool[Tensor, "P C"]
    ) -> Float[Tensor, "P"]:
        """Return the loss of each pair from its score and from the scores and negatives of its anchor."""

    def violated(self, positive: Float[Tensor, "P"], scores: Float[Tensor, "P C"]) -> Bool[Tensor, "P C"]:
        """Return which candidates would add to the pair's loss. Under a smooth criterion all do."""
        return torch.ones_like(scores, dtype=torch.bool)


class RankingTerm(Term):
    """A term that applies a miner and a criterion to a score matrix and to its transpose.

    Args:
        miner: the part that chooses the negatives of each anchor.
        criterion: the part that turns a pair and its negatives into a loss.
        reduction: the sum or the mean over the positive pairs of the batch. VSE++ and VSE-infinity use "sum".
    """

    def __init__(self, *, miner: Miner, criterion: Criterion, reduction: Literal["sum", "mean"] = "sum") -> None:
        super().__init__()
        self.miner = miner
        self.criterion = criterion
        self.reduction = reduction

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return the diagnostics of the miner, for images (i2t) and for texts (t2i) as anchors."""
        i2t = self.miner.diagnostics(batch.scores, batch.positives)
        t2i = self.miner.diagnostics(batch.scores.T, changed(batch.positives, Tensor.t))
        return {f"i2t_{k}": v for k, v in i2t.items()} | {f"t2i_{k}": v for k, v in t2i.items()}

    def both_ways(self, scores: Float[Tensor, "*K I T"], positives: Bool[Tensor, "I T"]) -> Float[Tensor, ""]:
        """Add the losses of the images and of the texts as anchors, on a GPU as one matrix if it is square."""
        if scores.device.type == "cpu" or scores.shape[-2] != scores.shape[-1]:
            return self.one_way(scores, positives) + self.one_way(scores.mT, changed(positives, Tensor.t))
        both = self.one_way(torch.cat((scores, scores.mT), dim=-2), of_values(positives, _both_sides, indices)[0])
        return both if self.reduction == "sum" else 2 * both

    def one_way(self, scores: Float[Tensor, "*K A C"], positives: Bool[Tensor, "A C"]) -> Float[Tensor, ""]:
        """Return the loss of the rows as anchors."""
        return self.reduce(self.criterion(scores, positives, self.miner(scores, positives)))

    def reduce(self, losses: Float[Tensor, "P"]) -> Float[Tensor, ""]:
        """Reduce the losses of the pairs to one number."""
        return losses.sum() if self.reduction == "sum" else losses.mean()


class Objective(nn.Module):
    """The weighted sum of named terms.

    Args:
        terms: the terms by name.
        weights: the factor of each term, by the same names.
        relative_to: terms with a relative weight, each with the name of its reference term. Before it is weighted, a
            term L is scaled to the current size of the reference, ``L * (L_other / L)``, where the quotient has no
            gradient (PVSE, Fig. 7). A term below a millionth of the reference, which is rounding, counts as 0.

    Raises:
        RecipeError: a term is relative to itself, or to an unknown term.
    """

    def __init__(
        self, terms: dict[str, Term], weights: dict[str, float], relative_to: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.terms = nn.ModuleDict(terms)
        self.weights = weights
        self.relative_to = dict(relative_to or {})
        for name, other in self.relative_to.items():
            if other not in terms or other == name:
                others = ", ".join(term for term in terms if term != name) or "none"
                raise RecipeError(f"objective.{name} is relative to {other!r}: name another term ({others})")

    def forward(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return each weighted term, and their sum under ``loss``."""
        plain = {name: term(batch) for name, term in self.terms.items()}
        scaled = {name: self._scaled(name, plain) for name in plain}
        values = {
            name: value if self.weights[name] == 1 else self.weights[name] * value for name, value in scaled.items()
        }
        first, *others = values.values()
        return values | {"loss": torch.stack([first, *others]).sum() if others else first}

    def _scaled(self, name: str, plain: Mapping[str, Tensor]) -> Tensor:
        """Return a term, scaled to the size of its reference term."""
        value, other = plain[name], self.relative_to.get(name)
        if other is None:
            return value
        size, wanted = value.detach(), plain[other].detach()
        nothing = size.abs() <= _ROUNDING * wanted.abs()
        return value * (wanted / size.masked_fill(nothing, 1.0)).masked_fill(nothing, 0.0)

    @torch.no_grad()
    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return the diagnostics of the terms, under ``TERM.NUMBER``."""
        reports = {name: cast(Term, term).diagnostics(batch) for name, term in self.terms.items()}
        return {f"{name}.{key}": value for name, report in reports.items() for key, value in report.items()}

    @torch.no_grad()
    def at_collapse(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Return the loss of this batch at collapse, when all embeddings are equal (``training/records.py``)."""
        equal = replace(
            batch, scores=torch.ones_like(batch.scores), images=_all_equal(batch.images), texts=_all_equal(batch.texts)
        )
        return cast(Tensor, self(equal)["loss"])


def _both_sides(positives: Bool[Tensor, "n n"]) -> tuple[Bool[Tensor, "m n"]]:
    return (torch.cat((positives, positives.T)),)


def _all_equal(embeddings: EmbeddingSet) -> EmbeddingSet:
    """Replace every embedding with the same unit vector, and every code of an autoencoder with the same code."""
    vectors = torch.zeros_like(embeddings.vectors)
    vectors[..., 0] = 1.0
    local = None if embeddings.local is None else _all_equal(embeddings.local)
    embeddings = replace(embeddings, local=local, unscaled=None if embeddings.unscaled is None else vectors)
    if embeddings.source is None or embeddings.residual is None:
        return replace(embeddings, vectors=vectors)
    return replace(embeddings, vectors=vectors, residual=torch.zeros_like(embeddings.residual))
