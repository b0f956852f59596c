"""The BiGRU's training step on a CPU: packed_gru against PyTorch's packed sequences.

python benchmarks/gru.py
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from _measure import environment, median_times, table
from openvse.functional import position_mask
from openvse.recurrence import packed_gru

BATCH, WORDS = 128, 300
Run = Callable[[nn.GRU, Tensor, Tensor], tuple[Tensor, Tensor]]


def pytorch(gru: nn.GRU, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Pack, run and pad, as PyTorch's documentation does."""
    packed = pack_padded_sequence(words, mask.sum(dim=1), batch_first=True, enforce_sorted=False)
    states, final = gru(packed)
    return pad_packed_sequence(states, batch_first=True)[0], final


def step(run: Run, gru: nn.GRU, words: Tensor, mask: Tensor, precision: torch.dtype) -> None:
    """Run forward and backward."""
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        states = run(gru, words, mask)[0]
    states.float().square().sum().backward()


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    lengths = torch.randint(7, 20, (BATCH,))  # captions of Flickr8k with their two boundaries
    lengths[0] = 26
    mask = position_mask(lengths, 26)
    words = torch.randn(*mask.shape, WORDS, requires_grad=True)
    rows: list[list[object]] = []
    for width in (512, 1024):
        gru = nn.GRU(WORDS, width, batch_first=True, bidirectional=True)
        for precision in (torch.float32, torch.bfloat16):
            steps = [partial(step, run, gru, words, mask, precision) for run in (packed_gru, pytorch)]
            ours, theirs = (1e3 * seconds for seconds in median_times(steps, repeats=7))
            rows.append([f"{width}, {str(precision).removeprefix('torch.')}", ours, theirs, theirs / ours])
    print(environment())
    print(table(["width", "packed_gru, ms", "PyTorch, ms", "ratio"], rows))


if __name__ == "__main__":
    main()
