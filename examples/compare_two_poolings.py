"""Compare two poolings on the same test items: is the difference larger than what chance would give?"""

import numpy as np
import torch
from torch import nn

import openvse
from openvse.evaluation import Ranks, bootstrap_replicates, rank_by_counting, retrieval_metrics
from openvse.functional import normalize
from openvse.types import Relevance

ITEMS, TRAIN, ELEMENTS, DIM = 1600, 1000, 12, 24
drawn = torch.Generator().manual_seed(0)
# An item is a set of elements of which only the first few mean something; a text is what they mean together.
meaning = torch.randn(ITEMS, 4, DIM, generator=drawn)
clutter = 0.5 * torch.randn(ITEMS, ELEMENTS - 4, DIM, generator=drawn)
sets = torch.cat([meaning, clutter], dim=1)
texts = meaning.amax(dim=1) + 0.5 * torch.randn(ITEMS, DIM, generator=drawn)


def rank(pooling: str, seed: int = 0) -> Ranks:
    """Train with a pooling and rank the test items, both ways."""
    torch.manual_seed(seed)
    project, pool, text = nn.Linear(DIM, 32), openvse.pooling(pooling, dim=32), nn.Linear(DIM, 32)
    loss = openvse.losses.adopt(temperature=0.1)
    parameters = [weight for part in (project, pool, text) for weight in part.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for _ in range(20):
        for rows in torch.randperm(TRAIN).split(100):
            optimizer.zero_grad()
            loss(pool(project(sets[rows])), text(texts[rows])).backward()
            optimizer.step()
    with torch.inference_mode():
        scores = normalize(pool(project(sets[TRAIN:]))) @ normalize(text(texts[TRAIN:])).T
    return rank_by_counting(lambda rows, columns: scores[rows, columns], pairs)


pairs = Relevance(np.arange(ITEMS - TRAIN), np.arange(ITEMS - TRAIN), ITEMS - TRAIN, ITEMS - TRAIN)
ranks = {pooling: rank(pooling) for pooling in ("mean", "gpo")}
rsum = {pooling: retrieval_metrics(ranked)["rsum"] for pooling, ranked in ranks.items()}
print(", ".join(f"{pooling}: RSUM {value:.1f}" for pooling, value in rsum.items()))

# The same seed draws the same items for both poolings: that makes the comparison a paired one.
drawn_rsum = {
    pooling: bootstrap_replicates(ranked, pairs, resamples=1000, seed=0)["rsum"] for pooling, ranked in ranks.items()
}
low, high = np.percentile(drawn_rsum["gpo"] - drawn_rsum["mean"], [2.5, 97.5])
print(f"gpo minus mean: {rsum['gpo'] - rsum['mean']:+.1f}, 95 % interval {low:+.1f} to {high:+.1f}")
print("the interval holds 0: no difference is shown" if low <= 0 <= high else "the difference is shown")
