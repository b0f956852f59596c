"""Captions of similar length together, so that a text model computes less padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn import functional as F

LEAST = 16  # captions in a group: smaller products are slower
MOST = 8  # groups: more of them save little padding


def in_length_groups(
    run: Callable[[Tensor, Tensor], Tensor], values: Shaped[Tensor, "B N *C"], mask: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N D"]:
    """Return what a text model makes of captions, up to rounding, by running it on groups of similar length.

    A batch is as wide as its longest caption, and the mean caption of Flickr8k has half of this. On a GPU, many small
    products take longer than padding, so there the batch stays whole; so it does in an exported program, which must do
    the same for every batch.

    Args:
        run: the text model: values ``[b, n, ...]`` and their mask ``[b, n]`` to states ``[b, n, D]``.
        values: the token ids or states of the captions.
        mask: which of them the model reads.

    Returns:
        The states; behind the last token that is read, they are 0.
    """
    if torch.compiler.is_compiling() or values.device.type != "cpu" or values.shape[0] < 2 * LEAST:
        return run(values, mask)
    width = mask.shape[1]
    place = torch.arange(1, width + 1)
    ends = (mask * place).amax(dim=1).clamp(min=1)
    order = ends.argsort(stable=True)
    groups = order.chunk(min(MOST, len(order) // LEAST))
    sizes = [int(ends[group[-1]]) for group in groups]
    states = [
        F.pad(run(values[group, :size], mask[group, :size]), (0, 0, 0, width - size))
        for group, size in zip(groups, sizes, strict=True)
    ]
    return torch.cat(states)[order.argsort()]
