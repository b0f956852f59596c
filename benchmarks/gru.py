"""The BiGRU's training step on a CPU: packed_gru against PyTorch's packed sequences.

python benchmarks/gru.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from _measure import environment, median_times, table
from openvse.functional import position_mask
from openvse.layers.recurrence import packed_gru

BATCH, LONGEST, WORDS = 128, 26, 300
Run = Callable[[nn.GRU, Tensor, Tensor], Tensor]


def pytorch(gru: nn.GRU, words: Tensor, mask: Tensor) -> Tensor:
    """Pack, run and pad, as PyTorch's documentation does."""
    packed = pack_padded_sequence(words, mask.sum(dim=1), batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(gru(packed)[0], batch_first=True)[0]


def masks() -> Iterator[Tensor]:
    """Yield which words are real, in other lengths each time, as in training: they are shapes of matrix products."""
    generator = torch.Generator().manual_seed(0)
    while True:
        # As Flickr8k's captions are, with their two boundaries.
        lengths = torch.randint(7, 20, (BATCH,), generator=generator)
        lengths[0] = LONGEST
        yield position_mask(lengths, LONGEST)


def step(run: Run, gru: nn.GRU, words: Tensor, drawn: Iterator[Tensor], precision: torch.dtype) -> None:
    """Run forward and backward on another batch."""
    mask = next(drawn)
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        states = run(gru, words, mask)
    states.float().square().sum().backward()


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    words = torch.randn(BATCH, LONGEST, WORDS, requires_grad=True)
    rows: list[list[object]] = []
    for width in (512, 1024):
        gru = nn.GRU(WORDS, width, batch_first=True, bidirectional=True)
        for precision in (torch.float32, torch.bfloat16):
            steps = [partial(step, run, gru, words, masks(), precision) for run in (packed_gru, pytorch)]
            ours, theirs = (1e3 * seconds for seconds in median_times(steps, repeats=7, warmup=7))
            rows.append([f"{width}, {str(precision).removeprefix('torch.')}", ours, theirs, theirs / ours])
    print(environment())
    print(table(["width", "packed_gru, ms", "PyTorch, ms", "ratio"], rows))


if __name__ == "__main__":
    main()
