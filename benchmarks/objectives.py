"""What the objectives cost: AdOpt and MMD against the way released code does them, each term beside the triplet loss.

python benchmarks/objectives.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from _measure import environment, median_times, table
from openvse.functional import normalize, set_max_scores
from openvse.objectives import (
    MMD,
    AdaptiveTopK,
    All,
    Contrast,
    Diversity,
    Hardest,
    Hinge,
    InfoNCE,
    MultiViewAverage,
    MultiViewBound,
    Term,
)
from openvse.types import EmbeddingSet, ScoredBatch

BATCH, WIDTH = 256, 1024
MARGIN, TEMPERATURE = 0.2, 0.05


def scored_batch(k: int, text_k: int) -> ScoredBatch:
    """Return a batch of pairs with K embeddings an image and a text; vectors and residuals want a gradient."""
    sides = []
    for embeddings in (k, text_k):
        vectors = normalize(torch.randn(BATCH, embeddings, WIDTH)).requires_grad_()
        residual = torch.rand(BATCH, embeddings, WIDTH, requires_grad=True)
        sides.append(EmbeddingSet(vectors, torch.ones(BATCH, embeddings, dtype=torch.bool), residual))
    return ScoredBatch(set_max_scores(*sides), torch.eye(BATCH, dtype=torch.bool), *sides)


def step(loss: Callable[[ScoredBatch], Tensor], batch: ScoredBatch) -> None:
    """Take the loss of a scored batch, and its gradient with respect to scores and embeddings."""
    scores = batch.scores.detach().requires_grad_()
    loss(replace(batch, scores=scores)).backward()
    for side in (batch.images, batch.texts):
        side.vectors.grad = None
        if side.residual is not None:
            side.residual.grad = None


def with_scoring(term: Term, batch: ScoredBatch) -> Tensor:
    """Score the batch again before the loss, as every training step does."""
    return term(replace(batch, scores=set_max_scores(batch.images, batch.texts)))


def adopt_by_gathering(num_negatives: int, batch: ScoredBatch) -> Tensor:
    """AdOpt as released code does it: gather each anchor's negative embeddings, and multiply them again."""
    total = torch.zeros(())
    images, texts = batch.images.vectors[:, 0], batch.texts.vectors[:, 0]
    for anchors, others, scores in ((images, texts, batch.scores), (texts, images, batch.scores.T)):
        hardest = scores.detach().masked_fill(batch.positives, -1.0).topk(num_negatives, dim=1).indices
        keys = others[hardest]  # [B, K, D]
        negatives = torch.einsum("bd,bkd->bk", anchors, keys) + MARGIN
        own = (anchors * others).sum(dim=1, keepdim=True)
        logits = torch.cat([own, negatives], dim=1) / TEMPERATURE
        target = torch.zeros(len(anchors), dtype=torch.long)
        total = total + torch.nn.functional.cross_entropy(logits, target)
    return total


def mmd_by_broadcasting(batch: ScoredBatch) -> Tensor:
    """The MMD as released code does it: all differences of all pairs, ``[M, M, D]``."""
    x, y = batch.images.vectors.flatten(0, 1), batch.texts.vectors.flatten(0, 1)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * (a.unsqueeze(1) - b.unsqueeze(0)).square().sum(dim=-1)).mean()

    return kernel(x, x) - 2 * kernel(x, y) + kernel(y, y)


def compare(
    ours: Callable[[ScoredBatch], Tensor], theirs: Callable[[ScoredBatch], Tensor], batch: ScoredBatch
) -> list[float]:
    """Check that both agree, and return the milliseconds of a loss step with each and their ratio."""
    torch.testing.assert_close(ours(batch), theirs(batch), rtol=1e-3, atol=1e-5)
    fast, slow = median_times([partial(step, ours, batch), partial(step, theirs, batch)], repeats=7, warmup=1)
    return [1e3 * fast, 1e3 * slow, slow / fast]


def terms() -> dict[str, Term]:
    """Return every objective's terms as the recipes set them."""
    hinge, mean_hinge = Hinge(margin=MARGIN), Hinge(margin=0.1, reduction="mean")
    soft = InfoNCE(temperature=TEMPERATURE, margin=MARGIN)
    return {
        "contrast, hardest + hinge (triplet)": Contrast(miner=Hardest(), criterion=hinge),
        "contrast, all + hinge, averaged (MIL)": Contrast(miner=All(), criterion=mean_hinge, reduction="mean"),
        "contrast, adaptive_top_k + info_nce (AdOpt)": Contrast(miner=AdaptiveTopK(), criterion=soft),
        "multi_view_average": MultiViewAverage(miner=Hardest(), criterion=hinge),
        "multi_view_bound": MultiViewBound(miner=Hardest(), criterion=hinge),
        "diversity": Diversity(),
        "mmd, rbf": MMD(),
        "mmd, legacy_exp": MMD(kernel="legacy_exp"),
    }


def main() -> None:
    """Print the tables."""
    torch.manual_seed(0)
    print(environment())
    single = scored_batch(1, 1)
    adopt = Contrast(miner=AdaptiveTopK(), criterion=InfoNCE(temperature=TEMPERATURE, margin=MARGIN), reduction="mean")
    chosen = int(AdaptiveTopK().diagnostics(single.scores, single.positives)["num_negatives"])
    gathering = partial(adopt_by_gathering, chosen)
    rows = [
        [f"AdOpt, K = {chosen}, {BATCH} x {WIDTH}", *compare(adopt, gathering, single)],
        [f"MMD, {BATCH} x {WIDTH}", *compare(MMD(), mmd_by_broadcasting, single)],
    ]
    print(table(["loss step", "openvse, ms", "as released, ms", "ratio"], rows))
    batch = scored_batch(3, 1)
    steps = [partial(step, partial(with_scoring, term), batch) for term in terms().values()]
    times = median_times(steps, repeats=15, warmup=3)
    print(f"\n{BATCH} pairs, {WIDTH} wide, K = 3 images, K = 1 texts; scoring included")
    print(
        table(
            ["term", "step, ms", "beside the triplet loss"],
            [[name, 1e3 * seconds, seconds / times[0]] for name, seconds in zip(terms(), times, strict=True)],
        )
    )


if __name__ == "__main__":
    main()
