"""GPO against mean and max pooling: what learning the pooling costs, forward and with its gradient.

    python benchmarks/pooling.py

The last column is the same sum by rank written plainly in PyTorch: sort, multiply, sum.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from _measure import environment, median_times, table
from openvse.aggregators import GPO, Max, Mean
from openvse.functional import position_mask
from openvse.types import EmbeddingSet, Features

BATCH, WIDTH = 128, 1024
REGIONS = 36
LONGEST_TEXT = 30


class Plain(nn.Module):
    """The sum by rank in single steps, with a weight for each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.rand(REGIONS))

    def forward(self, batch: Features) -> EmbeddingSet:
        """Sort, multiply, sum."""
        padding = ~batch.mask.unsqueeze(-1)
        rows = batch.local.masked_fill(padding, float("-inf")).sort(dim=1, descending=True).values
        real = position_mask(batch.mask.sum(dim=1), rows.shape[1]).unsqueeze(-1)
        weighted = rows.masked_fill(~real, 0.0) * self.weights[: rows.shape[1], None]
        return EmbeddingSet(weighted.sum(dim=1, keepdim=True), batch.mask[:, :1])


def features(lengths: torch.Tensor, device: str) -> Features:
    """Return a batch of random sets of these sizes whose values want a gradient."""
    longest = int(lengths.max())
    local = torch.randn(len(lengths), longest, WIDTH, device=device, requires_grad=True)
    return Features(local, position_mask(lengths, longest).to(device))


@torch.inference_mode()
def forward(pool: nn.Module, batch: Features) -> None:
    """Pool as at inference, where GPO looks its coefficients up."""
    pool(batch)
    finish(batch)


def forward_backward(pool: nn.Module, batch: Features) -> None:
    """Pool and take the gradient, as in a training step."""
    pool(batch).vectors.sum().backward()
    batch.local.grad = None
    finish(batch)


def finish(batch: Features) -> None:
    """Wait for a GPU."""
    if batch.local.is_cuda:
        torch.cuda.synchronize(batch.local.device)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.manual_seed(0)
    pools: list[nn.Module] = [kind(input_dim=WIDTH, embed_dim=WIDTH) for kind in (Mean, Max, GPO)]
    pools = [pool.to(device) for pool in (*pools, Plain())]
    batches = {
        f"regions, {BATCH} x {REGIONS} x {WIDTH}": torch.full((BATCH,), REGIONS),
        f"text, {BATCH} x 5 to {LONGEST_TEXT} x {WIDTH}": torch.randint(5, LONGEST_TEXT + 1, (BATCH,)),
    }
    rows: list[list[object]] = []
    for name, lengths in batches.items():
        batch = features(lengths, device)
        for step in (forward, forward_backward):
            functions: list[Callable[[], object]] = [partial(step, pool, batch) for pool in pools]
            seconds = median_times(functions, repeats=21, warmup=3)
            mean, top, gpo, plain = (1e3 * each for each in seconds)
            ratios = gpo / mean, gpo / top, gpo / plain
            rows.append([name, step.__name__.replace("_", " + "), mean, top, gpo, *ratios])
    print(environment())
    print(table(["sets", "pass", "mean, ms", "max, ms", "GPO, ms", "GPO / mean", "GPO / max", "GPO / plain"], rows))


if __name__ == "__main__":
    main()
