"""GPO against mean and max pooling: what learning the pooling costs, forward and with its gradient.

python benchmarks/pooling.py
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from _measure import environment, median_times, table
from openvse.aggregators import GPO, Aggregator, Max, Mean
from openvse.functional import position_mask
from openvse.types import Features

BATCH, WIDTH = 128, 1024
REGIONS = 36
LONGEST_TEXT = 30


def features(lengths: torch.Tensor) -> Features:
    """Return a batch of random sets of these sizes whose values want a gradient."""
    longest = int(lengths.max())
    local = torch.randn(len(lengths), longest, WIDTH, requires_grad=True)
    return Features(local, position_mask(lengths, longest))


@torch.inference_mode()
def forward(pool: Aggregator, batch: Features) -> None:
    """Pool as at inference, where GPO looks its coefficients up."""
    pool(batch)


def forward_backward(pool: Aggregator, batch: Features) -> None:
    """Pool and take the gradient, as in a training step."""
    pool(batch).vectors.sum().backward()
    batch.local.grad = None


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    pools = [kind(input_dim=WIDTH, embed_dim=WIDTH) for kind in (Mean, Max, GPO)]
    batches = {
        f"regions, {BATCH} x {REGIONS} x {WIDTH}": torch.full((BATCH,), REGIONS),
        f"text, {BATCH} x 5 to {LONGEST_TEXT} x {WIDTH}": torch.randint(5, LONGEST_TEXT + 1, (BATCH,)),
    }
    rows: list[list[object]] = []
    for name, lengths in batches.items():
        batch = features(lengths)
        for step in (forward, forward_backward):
            functions: list[Callable[[], object]] = [partial(step, pool, batch) for pool in pools]
            mean, top, gpo = (1e3 * seconds for seconds in median_times(functions, repeats=21, warmup=3))
            rows.append([name, step.__name__.replace("_", " + "), mean, top, gpo, gpo / mean, gpo / top])
    print(environment())
    print(table(["sets", "pass", "mean, ms", "max, ms", "GPO, ms", "GPO / mean", "GPO / max"], rows))


if __name__ == "__main__":
    main()
