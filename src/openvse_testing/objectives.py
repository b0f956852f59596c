"""The promises of a miner, a criterion and an objective term. See ``check_part``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from openvse.functional import masked_softmax, normalize, set_max_scores
from openvse.objectives import Criterion, Miner, Term
from openvse.objectives.base import Objective
from openvse.types import EmbeddingSet, PairWeights, ScoredBatch
from openvse_testing.contract import require, require_close

WIDTH = 5
_SIZES = ((1, 1), (1, 4), (3, 1), (5, 7), (6, 6))
_SHIFTS = (0.0, -5.0, 5.0)  # scores far above and below 0 catch a positive that is masked with 0


def _problem(anchors: int, candidates: int, seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return random scores and positives. Every anchor has a positive, and some have no negative."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(anchors, candidates, dtype=torch.float64, generator=generator) * 2 - 1 + shift
    positives = torch.rand(anchors, candidates, generator=generator) > 0.7
    positives[torch.arange(anchors), torch.randint(candidates, (anchors,), generator=generator)] = True
    return scores, positives


def _problems() -> Iterator[tuple[Tensor, Tensor]]:
    for anchors, candidates in _SIZES:
        for shift in _SHIFTS:
            yield from (_problem(anchors, candidates, seed, shift) for seed in range(3))


def _choice(miner: Miner) -> None:
    for scores, positives in _problems():
        negatives = miner(scores, positives)
        require(
            negatives.shape == scores.shape and negatives.dtype == torch.bool,
            f"the choice is {negatives.dtype} {list(negatives.shape)} for scores {list(scores.shape)}, not bool",
        )
        require(not bool((negatives & positives).any()), "a positive is chosen as a negative")
        missing = ~negatives.any(dim=1) & ~positives.all(dim=1)
        require(not bool(missing.any()), "an anchor that has a negative gets none")


def _mined_scores(miner: Miner) -> None:
    scores, positives = _problem(5, 7, 0)
    given = scores.clone().requires_grad_()
    require(not miner(given, positives).requires_grad, "a gradient flows through the choice")
    require(torch.equal(given.detach(), scores), "the miner changes the scores that it reads")


def _miner_diagnostics(miner: Miner) -> None:
    for scores, positives in _problems():
        _require_numbers(miner.diagnostics(scores, positives))


def _require_numbers(report: Mapping[str, Tensor]) -> None:
    for name, value in report.items():
        finite = isinstance(value, Tensor) and value.dim() == 0 and bool(value.isfinite())
        require(finite, f"the diagnostic {name!r} is {value!r}, not a tensor with one finite number")


def _pairs(criterion: Criterion) -> None:
    for scores, positives in _problems():
        given = scores.clone().requires_grad_()
        losses = criterion(given, positives, ~positives)
        pairs = int(positives.sum())
        require(losses.shape == (pairs,), f"{pairs} positive pair(s) have losses {list(losses.shape)}")
        (gradient,) = torch.autograd.grad(losses.sum(), given, allow_unused=True, materialize_grads=True)
        finite = bool(losses.isfinite().all()) and bool(gradient.isfinite().all())
        require(finite, "a loss or its gradient is not finite")


def _direction(criterion: Criterion) -> None:
    positives = torch.eye(4, dtype=torch.bool)
    scores = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(criterion(scores, positives, ~positives).sum(), scores)
    require(bool((gradient[positives] < 0).all()), "a step down the gradient does not raise a positive score")
    pushed = gradient.masked_fill(positives, 0.0)
    require(
        bool((pushed >= 0).all()) and bool((pushed > 0).any(dim=1).all()),
        "a step down the gradient does not lower the scores of negatives",
    )


def _perfect(criterion: Criterion) -> None:
    positives = torch.eye(4, dtype=torch.bool)
    perfect = criterion(torch.where(positives, 1.0, -1.0).double(), positives, ~positives).sum()
    for seed in range(5):
        worse = criterion(_problem(4, 4, seed)[0], positives, ~positives).sum()
        require(bool(worse >= perfect), "random scores in [-1, 1] have a lower loss than perfect ones")


def _left_out(criterion: Criterion) -> None:
    scores, positives = _problem(5, 7, 0)
    negatives = ~positives & (torch.arange(7) % 2 == 0)
    ignored = ~positives & ~negatives
    require_close(
        criterion(scores.masked_fill(ignored, 3.0), positives, negatives),
        criterion(scores, positives, negatives),
        "candidates that are not negatives change the loss",
    )


def _violated(criterion: Criterion) -> None:
    scores, positives = _problem(5, 7, 0)
    anchors, candidates = positives.nonzero(as_tuple=True)
    rivals = scores[anchors].requires_grad_()
    positive, negatives = scores[anchors, candidates], ~positives[anchors]
    losses = criterion.pair_loss(positive, rivals, negatives)
    violated = criterion.violated(positive, rivals.detach())
    wanted = f"violated() must return bool {list(rivals.shape)}"
    require(violated.shape == rivals.shape and violated.dtype == torch.bool, wanted)
    (gradient,) = torch.autograd.grad(losses.sum(), rivals, allow_unused=True, materialize_grads=True)
    require(not bool(gradient[~violated].any()), "violated() leaves out a candidate that adds to the loss")


def _vectors(images: int = 4, texts: int = 6, k: int = 3) -> list[Tensor]:
    """Return unnormalised vectors and residuals of images (K = k) and of texts (K = 2)."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(images, k, WIDTH)] * 2 + [(texts, 2, WIDTH)] * 2
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


def _batch(vectors: list[Tensor], text_mask: Tensor | None = None) -> ScoredBatch:
    """Score with set_max. The i-th text belongs to the i-th image, modulo their number."""
    images, texts = _side(vectors[0], vectors[1]), _side(vectors[2], vectors[3], text_mask)
    owners = torch.arange(len(texts)) % len(images)
    return _scored(images, texts, owners == torch.arange(len(images)).unsqueeze(1))


def _side(vectors: Tensor, residual: Tensor, mask: Tensor | None = None) -> EmbeddingSet:
    mask = torch.ones(vectors.shape[:2], dtype=torch.bool) if mask is None else mask
    return EmbeddingSet(
        normalize(vectors), mask, residual, vectors.detach()[:, 0], vectors, EmbeddingSet(vectors, mask)
    )


def _scored(images: EmbeddingSet, texts: EmbeddingSet, positives: Tensor) -> ScoredBatch:
    return ScoredBatch(set_max_scores(images, texts), positives, images, texts, partial(_attended, images, texts))


def _attended(images: EmbeddingSet, texts: EmbeddingSet, rows: Tensor, columns: Tensor) -> PairWeights:
    """Weigh by the softmax of the cosines with the first embedding of the partner."""
    some, others = images[rows], texts[columns]
    of_images = masked_softmax(others.vectors[:, :1] @ some.vectors.mT, some.mask.unsqueeze(1))
    return of_images, masked_softmax(some.vectors[:, :1] @ others.vectors.mT, others.mask.unsqueeze(1))


def _value(term: Term, batch: ScoredBatch) -> Tensor:
    value: Tensor = term(batch)
    require(value.shape == (), f"the value has the shape {list(value.shape)}, but must be a single number")
    return value


def _require_gradients(term: Term, vectors: list[Tensor]) -> list[Tensor]:
    """Return the gradients of the vectors. Value and gradients must be finite."""
    given = [tensor.requires_grad_() for tensor in vectors]
    value = _value(term, _batch(given))
    gradients = torch.autograd.grad(value, given, allow_unused=True, materialize_grads=True)
    finite = bool(value.isfinite()) and all(bool(gradient.isfinite().all()) for gradient in gradients)
    require(finite, "the value or its gradient is not finite")
    return [*gradients]


def _gradient(term: Term) -> None:
    gradients = _require_gradients(term, _vectors())
    require(any(bool(each.any()) for each in gradients), "the gradient of all embeddings is 0")


def _one_pair(term: Term) -> None:
    _require_gradients(term, _vectors(1, 1, 1))


def _order(term: Term) -> None:
    batch = _batch(_vectors())
    rows, columns = torch.tensor([2, 0, 3, 1]), torch.tensor([5, 1, 0, 4, 2, 3])
    shuffled = _scored(batch.images[rows], batch.texts[columns], batch.positives[rows][:, columns])
    require_close(term(shuffled), term(batch), "the order of images and texts changes the value")


def _masked(term: Term) -> None:
    vectors = _vectors()
    mask = torch.tensor([[True, False]]).expand(6, 2)
    garbage = [*vectors[:2], *(each.masked_fill(~mask.unsqueeze(-1), 7.0) for each in vectors[2:])]
    message = "an embedding that does not exist changes the value"
    require_close(term(_batch(vectors, mask)), term(_batch(garbage, mask)), message)
    first = [*vectors[:2], *(each[:, :1] for each in vectors[2:])]
    require_close(term(_batch(vectors, mask)), term(_batch(first, mask[:, :1])), message)


def _term_diagnostics(term: Term) -> None:
    batch = _batch(_vectors())
    before = term(batch)
    with torch.no_grad():
        _require_numbers(term.diagnostics(batch))
    require_close(term(batch), before, "diagnostics() changes the value", atol=0.0)


def _collapse(term: Term) -> None:
    batch = _batch(_vectors())
    _value(term, batch)
    at_collapse = float(Objective({"it": term}, {"it": 1.0}).at_collapse(batch))
    require(math.isfinite(at_collapse), f"the value for equal embeddings is {at_collapse}, not a finite number")


MINER_PROMISES = (_choice, _mined_scores, _miner_diagnostics)
CRITERION_PROMISES = (_pairs, _direction, _perfect, _left_out, _violated)
TERM_PROMISES = (_gradient, _one_pair, _order, _masked, _term_diagnostics, _collapse)
