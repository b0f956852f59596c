"""The checks of miners, criteria and objective terms find what is broken, and say what it is."""

import pytest
import torch
from torch import Tensor

from openvse.errors import RecipeError
from openvse.objectives import CRITERIA, MINERS, TERMS, Contrast, Criterion, Hardest, Hinge, Miner, Term
from openvse.types import ScoredBatch
from openvse_testing import BrokenContractError, check_part


class MaskedWithZero(Hardest):
    def mine(self, scores: Tensor, positives: Tensor) -> Tensor:
        hardest = scores.masked_fill(positives, 0.0).argmax(dim=1, keepdim=True)
        return torch.zeros_like(positives).scatter_(1, hardest, True)


class Overwriting(Hardest):
    def mine(self, scores: Tensor, positives: Tensor) -> Tensor:
        return super().mine(scores.masked_fill_(positives, -1.0), positives)


class OneForAll(Hardest):
    def forward(self, scores: Tensor, positives: Tensor) -> Tensor:
        return super().forward(scores, positives)[:, :1]


class Unexplained(Hardest):
    def diagnostics(self, scores: Tensor, positives: Tensor) -> dict[str, Tensor]:
        return {"mean": scores[~positives].mean()}  # NaN without negatives


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (MaskedWithZero, "MaskedWithZero.*'choice'"),
        (Overwriting, "'mined scores'"),
        (OneForAll, "'choice'.*torch.bool.*1.*1.*1.*4"),
        (Unexplained, "diagnostics'.*'mean'"),
    ],
)
def test_a_broken_miner_is_found(part: type[Miner], message: str) -> None:
    with pytest.raises(BrokenContractError, match=message):
        check_part(MINERS, part)


class Reversed(Hinge):
    def pair_loss(self, positive: Tensor, scores: Tensor, negatives: Tensor) -> Tensor:
        return super().pair_loss(-positive, -scores, negatives)


class Summed(Hinge):
    def forward(self, scores: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        return super().forward(scores, positives, negatives).sum()


class OfAllCandidates(Hinge):
    def pair_loss(self, positive: Tensor, scores: Tensor, negatives: Tensor) -> Tensor:
        return super().pair_loss(positive, scores, torch.ones_like(negatives))


class Averaged(Hinge):
    def pair_loss(self, positive: Tensor, scores: Tensor, negatives: Tensor) -> Tensor:
        return super().pair_loss(positive, scores, negatives) / negatives.sum(dim=1)  # 0 / 0


class Harmless(Hinge):
    def violated(self, positive: Tensor, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores, dtype=torch.bool)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Reversed, "'direction'"),
        (Reversed, "'perfect'"),
        (Summed, "'pairs'.*1"),
        (OfAllCandidates, "'left out'"),
        (Averaged, "'pairs'"),
        (Harmless, "'violated'"),
    ],
)
def test_a_broken_criterion_is_found(part: type[Criterion], message: str) -> None:
    with pytest.raises(BrokenContractError, match=message):
        check_part(CRITERIA, part)


class FirstImage(Term):
    def forward(self, batch: ScoredBatch) -> Tensor:
        return batch.scores[0].sum()


class AllEmbeddings(Term):
    def forward(self, batch: ScoredBatch) -> Tensor:
        return batch.texts.vectors.sum()


class Constant(Term):
    def forward(self, batch: ScoredBatch) -> Tensor:
        return 0 * batch.scores.sum()


class Spread(Term):
    def forward(self, batch: ScoredBatch) -> Tensor:
        return (batch.scores - batch.scores.mean()).square().sum() / (batch.scores.numel() - 1)


class OnePerImage(Term):
    def forward(self, batch: ScoredBatch) -> Tensor:
        return batch.scores.sum(dim=1)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (FirstImage, "FirstImage.*'order'"),
        (AllEmbeddings, "'masked'"),
        (Constant, "'gradient'.*0"),
        (Spread, "'one pair'"),
        (OnePerImage, "'gradient'.*4"),
    ],
)
def test_a_broken_term_is_found(part: type[Term], message: str) -> None:
    with pytest.raises(BrokenContractError, match=message):
        check_part(TERMS, part)


def test_sound_parts_pass_with_their_options() -> None:
    check_part(MINERS, "adaptive_top_k", options={"rule": "paper"})
    check_part(CRITERIA, Hinge, options={"margin": 0.1, "reduction": "mean"})
    check_part(TERMS, Contrast, options={"miner": "all", "criterion": {"name": "info_nce"}})
    with pytest.raises(RecipeError, match=r"Hinge\.temperature"):
        check_part(CRITERIA, Hinge, options={"temperature": 1.0})
