"""Embeddings and queries that are drawn like those of images and captions, for benchmarks of search.

A drawn item is the sum of its topic (one of 100, which are common to all blocks), its scene (about 12 items of a block
share one) and something of its own, in the proportions 0.30 : 0.15 : 0.55 of the variance, scaled to unit length. The
variance of the dimensions falls as (1 + i / 10) ** -1.4. A query is near the topic and the scene of an item, and less
near to what the item has of its own, with noise around.

The proportions are those at which 8,091 drawn items of width 512 resemble the embeddings of the 8,091 images of
Flickr8k by a fine-tuned model (EfficientNet-Lite0 and MiniLM, GPO); ``python benchmarks/_drawn.py`` prints the cosines.
"""

from __future__ import annotations

import numpy as np
import torch

from openvse.functional import normalize

BLOCK = 10_000
TOPICS = 100
PER_SCENE = 12
OF_TOPIC, OF_SCENE = 0.3, 0.15
OWN_OF_QUERY = 0.3  # what a query has of the item's own part
NEAR = 0.6  # cosine of a query and what it is about, before their own noise


def drawn(count: int, dim: int, seed: int) -> torch.Tensor:
    """Return a block of embeddings, ``[count, dim]``, of unit length."""
    shared, own = _parts(count, dim, seed)
    return normalize(shared + own)


def drawn_queries(count: int, dim: int, items: int) -> torch.Tensor:
    """Return queries, ``[count, dim]``, about items of as many blocks as possible; blocks as in ``drawn_blocks``."""
    starts = range(0, items, BLOCK)
    generator = torch.Generator().manual_seed(7)
    queries = torch.empty(count, dim)
    for start, wanted in zip(starts, np.array_split(np.arange(count), len(starts)), strict=True):
        if not len(wanted):
            continue
        shared, own = _parts(min(BLOCK, items - start), dim, start)
        some = torch.randint(len(shared), (len(wanted),), generator=generator)
        about = normalize(shared[some] + OWN_OF_QUERY * own[some])
        noise = normalize(torch.randn(len(wanted), dim, generator=generator) * _spread(dim))
        queries[torch.from_numpy(wanted)] = NEAR * about + (1 - NEAR**2) ** 0.5 * noise
    return normalize(queries)


def _parts(count: int, dim: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the items of a block share with others, and what they have of their own."""
    topics = torch.randn(TOPICS, dim, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    scenes = max(1, count // PER_SCENE)
    topic = (TOPICS * torch.rand(scenes, generator=generator) ** 2).long()  # some topics are frequent
    centres = OF_TOPIC**0.5 * topics[topic] + OF_SCENE**0.5 * torch.randn(scenes, dim, generator=generator)
    shared = centres[torch.randint(scenes, (count,), generator=generator)]
    own = (1 - OF_TOPIC - OF_SCENE) ** 0.5 * torch.randn(count, dim, generator=generator)
    return shared * _spread(dim), own * _spread(dim)


def _spread(dim: int) -> torch.Tensor:
    return (1 + torch.arange(dim) / 10) ** -0.7


def main() -> None:
    """Print cosines of drawn items and queries."""
    items = drawn(8091, 512, seed=0)
    queries = drawn_queries(800, 512, 8091)
    for name, asked, first in (("query and item", queries, 0), ("two items", items[:800], 1)):
        scores = np.sort((asked @ items.T).numpy(), axis=1)[:, ::-1]
        best, tenth, hundredth = (np.median(scores[:, first + rank]) for rank in (0, 9, 99))
        print(f"{name}: nearest {best:.3f}, tenth {tenth:.3f}, hundredth {hundredth:.3f}, all {scores.std():.3f}")


if __name__ == "__main__":
    main()
