"""Token ids of many sentences in two tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from openvse.functional import position_mask
from openvse.types import Inputs


class TokenTable:
    """Sentences of different lengths in one tensor, one after the other.

    A list of 600,000 small tensors (the captions of COCO) takes ten times the memory of their ids, and every
    worker process would copy it while counting references.

    Args:
        tokens: the token ids of each sentence, ``int64 [N]``.
    """

    def __init__(self, tokens: Sequence[Int[Tensor, "_"]]) -> None:
        self.lengths = torch.tensor([len(ids) for ids in tokens], dtype=torch.int64)
        self._ids = torch.cat(tuple(tokens)) if len(tokens) else torch.zeros(0, dtype=torch.int64)
        self._starts = self.lengths.cumsum(0) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Return some sentences, padded with 0 to their longest, and their mask."""
        rows = torch.from_numpy(positions)
        lengths = self.lengths[rows]
        mask = position_mask(lengths, int(lengths.max()))
        source = self._starts[rows].unsqueeze(1) + torch.arange(mask.shape[1])
        return Inputs(self._ids[source.where(mask, 0)].where(mask, 0), mask)
