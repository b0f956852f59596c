"""Gathers a batch over processes, with its gradient, so that every process sees all in-batch negatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Bool, Int
from torch import Tensor

from openvse.types import EmbeddingSet, with_places


def gather_batch(
    images: EmbeddingSet,
    texts: EmbeddingSet,
    positives: Bool[Tensor, "I T"],
    image_keys: Int[Tensor, "I"],
    partners: Int[Tensor, "R 2"] | None = None,
) -> tuple[EmbeddingSet, EmbeddingSet, Bool[Tensor, "J U"]]:
    """Join the images, texts and positives of all processes, by rank. With one process, return the arguments.

    Every process computes the whole loss. The backward pass adds the gradients of all processes. The mean that data
    parallelism takes over processes then gives the gradient of this one loss.

    Args:
        image_keys: a number for each image, which is the same in all processes. If two processes hold an image, it is a
            positive of its texts in both.
        partners: (image key, row of the local text) for every relevant pair with an image of any process. None if the
            local positives are all.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return images, texts, positives
    if partners is None:
        rows, columns = positives.nonzero(as_tuple=True)
        partners = torch.stack((image_keys[rows], columns), dim=1)
    of_image = _gather_rows(image_keys).unsqueeze(1) == partners[:, 0]  # [all I, R]
    of_text = partners[:, 1].unsqueeze(1) == torch.arange(len(texts), device=partners.device)  # [R, T]
    local = of_image.float() @ of_text.float() > 0
    everywhere = _gather_rows(local.T.contiguous()).T
    return _gather_set(images), _gather_set(texts), everywhere


def _gather_set(embedded: EmbeddingSet) -> EmbeddingSet:
    return _widened(embedded).map(_gather_rows)


def _widened(embedded: EmbeddingSet) -> EmbeddingSet:
    """Pad to the largest number of embeddings per item in any process, because gathering needs equal shapes."""
    most = torch.tensor([embedded.mask.shape[1]], device=embedded.mask.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    source, local = embedded.source, embedded.local
    wide = replace(embedded, source=None, local=None).map(lambda each: with_places(each, int(most)))
    return replace(wide, source=source, local=None if local is None else _widened(local))


def _gather_rows(rows: Tensor) -> Tensor:
    """Concatenate the rows of all processes. They are padded meanwhile, because gathering needs equal shapes."""
    count = torch.tensor([len(rows)], device=rows.device)
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    sizes = [int(c) for c in counts]
    padded = torch.cat([rows, rows.new_zeros((max(sizes) - len(rows), *rows.shape[1:]))])
    wire = padded.to(torch.uint8) if padded.dtype == torch.bool else padded
    parts: Tensor = _AllGather.apply(wire)  # type: ignore[no-untyped-call]
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]).to(rows.dtype)


class _AllGather(torch.autograd.Function):
    """Stacks the tensors of all processes. The gradient of each part is summed over all processes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        """Return ``[processes, ...]``."""
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient of this process's part."""
        total = gradient.contiguous()
        dist.all_reduce(total)
        return total[dist.get_rank()]
