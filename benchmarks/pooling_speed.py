"""Items per second of poolings, forward and in training (VSE+2AD, Table 4, as a multiple of its slowest).

python benchmarks/pooling_speed.py
python benchmarks/pooling_speed.py mean gpo adpool --elements 49 --width 512
python benchmarks/pooling_speed.py k_max+mean gpo

``A+B`` pools one half of the items with A and the other with B, as the Manual pair does: 5-max for
images, mean for texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from _measure import environment, median_times, table
from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.types import Features

POOLINGS = (
    "mean", "max", "k_max", "k_max+mean", "gpo", "adpool", "ada_pool", "soft_pool", "lip", "fs_pool", "self_attention",
    "seq2seq", "gcn",
)  # fmt: skip
"""The poolings of VSE+2AD's Table 4, whose Manual is k_max+mean, and those of VSE-infinity that are learned."""


@dataclass(frozen=True)
class PoolingSpeed:
    """How many items a pooling processes in a second, in the forward pass, and forward and backward together."""

    name: str
    forward: float
    training: float


def time_poolings(
    names: Sequence[str] = POOLINGS, *, elements: int = 36, width: int = 1024, batch: int = 128, repeats: int = 5
) -> list[PoolingSpeed]:
    """Time poolings on random sets; they take turns.

    Args:
        names: the poolings, as recipes name them; ``A+B`` for a pair.
        elements: N, the number of local features of an item.
        width: L = D.
        batch: the number of items in a batch.
        repeats: how often each pooling is timed; one more warms up.
    """
    mask = torch.ones(batch, elements, dtype=torch.bool)
    features = Features(torch.randn(batch, elements, width), mask, torch.randn(batch, width))
    pools = [_Halves(name, width) for name in names]
    calls: list[Callable[[], object]] = [partial(step, p, features) for p in pools for step in (_forward, _train)]
    speeds = [batch / seconds for seconds in median_times(calls, repeats, warmup=1)]
    return [PoolingSpeed(*each) for each in zip(names, speeds[::2], speeds[1::2], strict=True)]


class _Halves:
    """Pools a batch; of a pair, each aggregator pools its half."""

    def __init__(self, name: str, width: int) -> None:
        self._pools: list[Aggregator] = [
            AGGREGATORS.get(each)(input_dim=width, embed_dim=width) for each in name.split("+")
        ]

    def __call__(self, features: Features) -> Tensor:
        """Return the sum of squares of all embeddings, of which a gradient can be taken."""
        assert features.pooled is not None
        parts = (each.tensor_split(len(self._pools)) for each in (features.local, features.mask, features.pooled))
        pooled = (pool(Features(*part)) for pool, *part in zip(self._pools, *parts, strict=True))
        return torch.stack([each.vectors.square().sum() for each in pooled]).sum()


@torch.inference_mode()
def _forward(pool: _Halves, features: Features) -> None:
    pool(features)


def _train(pool: _Halves, features: Features) -> None:
    learned = features.local.clone().requires_grad_()
    pool(Features(learned, features.mask, features.pooled)).backward()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("poolings", nargs="*", default=POOLINGS, help="aggregators, as recipes name them")
    parser.add_argument("--elements", type=int, default=36, help="local features of an item")
    parser.add_argument("--width", type=int, default=1024, help="width of the features")
    parser.add_argument("--batch", type=int, default=128, help="items in a batch")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    speeds = time_poolings(
        given.poolings, elements=given.elements, width=given.width, batch=given.batch, repeats=given.repeats
    )
    slowest = min(speed.forward for speed in speeds)
    print(environment())
    print(
        table(
            ["pooling", "items per second", "in training", "times the slowest"],
            [[s.name, s.forward, s.training, s.forward / slowest] for s in speeds],
        )
    )


if __name__ == "__main__":
    main()
