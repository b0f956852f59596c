"""Pure tensor functions, without modules or configuration. Shapes follow the legend in ``types``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from openvse.errors import DataError
from openvse.kernels import is_traced, shapes_are_fixed
from openvse.kernels.ranked import is_usable, sort_elements, sum_ranked
from openvse.types import EmbeddingSet, Inputs, knows, moved_together, on_cpu

__all__ = ["masked_max", "masked_mean", "normalize"]

MASKED = float("-inf")
"""Padding before a maximum or a softmax. Before a sum it is 0."""


def masked_mean(local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
    """Return the mean over the real elements of each item."""
    weights = mask.to(local.dtype) / mask.sum(dim=1, keepdim=True).clamp(min=1).to(local.dtype)
    return torch.einsum("bn,bnl->bl", weights, _filled(local, mask, 0.0))


def masked_max(local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
    """Return the maximum over the real elements in each dimension."""
    return _filled(local, mask, MASKED).amax(dim=1)


def _filled(local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"], value: float) -> Float[Tensor, "B N L"]:
    """Return the elements with a value in place of padding, as a copy only where there is padding."""
    return local if is_full(mask) else local.masked_fill(of_values(mask, padding)[0].unsqueeze(-1), value)


def masked_k_max(local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"], k: int) -> Float[Tensor, "B L"]:
    """Return the mean of the min(k, N_b) largest real elements in each dimension (VSE-infinity, section 3.2)."""
    if is_usable(local):
        k = min(k, local.shape[1])
        sizes = mask.sum(dim=1).clamp(1, k)
        return sum_ranked(local, mask, position_mask(sizes, local.shape[1]) / sizes.unsqueeze(1))
    ranked = local.masked_fill(~mask.unsqueeze(-1), MASKED)
    if is_traced():  # the program is for sets of any size
        ranked = F.pad(ranked, (0, 0, 0, k), value=MASKED)
    k = min(k, ranked.shape[1])
    return masked_mean(ranked.topk(k, dim=1).values, position_mask(mask.sum(dim=1), k))


def soft_pool(
    local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"], logits: Float[Tensor, "B N L"] | None = None
) -> Float[Tensor, "B L"]:
    """Return ``v_d = sum_n softmax_n(g_nd) x_nd`` for logits g. g = x is SoftPool (eq. 2 and 3, and VSE+2AD, eq. 4)."""
    missing = of_values(mask, padding)[0].unsqueeze(-1)
    weights = (local if logits is None else logits).masked_fill(missing, MASKED).softmax(dim=1)
    return (weights * local.masked_fill(missing, 0.0)).sum(dim=1)


def sort_descending(local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L N"]:
    """Sort each dimension over the elements, largest first. NaN counts as the largest. Padding comes last and is 0.

    On a CPU a compiled kernel sorts. Elsewhere the sorted axis becomes the last one, because sorting contiguous runs is
    faster than sorting strided ones.
    """
    if is_usable(local):
        return sort_elements(local, mask).transpose(1, 2)
    if padded := not is_full(mask):
        missing, beyond = of_values(mask, padding)
        local = local.masked_fill(missing.unsqueeze(-1), MASKED)
    columns = local.transpose(1, 2).contiguous()
    here = columns.device.type == "cpu" and not is_traced()
    by_numpy = here and not bool(columns.isnan().any())  # NumPy sorts NaN to the other end
    ranked = _sort_on_cpu(columns) if by_numpy else columns.sort(dim=-1, descending=True).values
    if padded:
        ranked = ranked.masked_fill(beyond.unsqueeze(1), 0.0)
    return ranked


def sum_by_rank(
    local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"], weights: Float[Tensor, "B M"]
) -> Float[Tensor, "B L"]:
    """Sum the elements with weights by their rank in each dimension: ``v_d = sum_k w_k * max_k(x_1d .. x_Nd)``.

    Args:
        local: the sets.
        mask: True for real elements.
        weights: the weights of the largest element, the second largest, and so on, for at least as many ranks as the
            largest set has elements.
    """
    if is_usable(local):
        return sum_ranked(local, mask, weights)
    ranked = sort_descending(local, mask)[..., : weights.shape[1]]
    return torch.einsum("bln,bn->bl", ranked, weights[:, : ranked.shape[2]].to(ranked.dtype))


def _sort_on_cpu(columns: Float[Tensor, "B L N"]) -> Float[Tensor, "B L N"]:
    """Sort short runs with NumPy's vectorised sort, several times faster than torch.sort (benchmarks/pooling.py)."""
    keys = columns.detach().neg()
    if keys.dtype in (torch.bfloat16, torch.float16):
        keys = keys.float()
    if torch.is_grad_enabled() and columns.requires_grad:
        return columns.gather(-1, torch.from_numpy(np.argsort(keys.numpy(), axis=-1)))
    keys.numpy().sort(axis=-1)  # in place, on the copy that neg made
    return keys.neg_().to(columns.dtype)


def kth_largest(scores: Float[Tensor, "A C"], k: Int[Tensor, ""]) -> Float[Tensor, "A"]:
    """Return the k-th largest value of each row, without a gradient."""
    scores = scores.detach()
    if scores.device.type != "cpu" or scores.dtype in (torch.bfloat16, torch.float16):
        ranked = scores.sort(dim=1, descending=True).values
        return ranked.gather(1, (k - 1).expand(len(scores), 1)).squeeze(1)
    # NumPy's partition is vectorised, and ten times as fast as topk for the k of AdOpt.
    place = scores.shape[1] - int(k)
    return torch.from_numpy(np.partition(scores.numpy(), place, axis=1)[:, place].copy())


def position_mask(lengths: Int[Tensor, "B"], size: int) -> Bool[Tensor, "B N"]:
    """Return ``[B, size]``, True at the positions below each length."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)


Make: TypeAlias = Callable[[Tensor], Sequence[Tensor]]
_MADE: MutableMapping[Tensor, dict[Make, Sequence[Tensor]]] = WeakTensorKeyDictionary()


def of_values(given: Tensor, make: Make, *more: Make) -> Sequence[Tensor]:
    """Return what a function makes of a mask or of sizes: on the CPU, once, and copied to their device together.

    Each function of ``more`` reads the first result of the one before, and its results are copied for later calls. If
    the CPU does not know the values, the device runs the function.
    """
    if given.device.type == "cpu" or is_traced() or not knows(given):
        return make(given)
    if (known := _MADE.setdefault(given, {})).get(make) is None:
        results, source = [], on_cpu(given)
        for each in (make, *more):
            results.append(each(source))
            source = results[-1][0]
        copies = iter(moved_together([tensor for made in results for tensor in made], given.device))
        for each, made in zip((make, *more), results, strict=True):
            _MADE.setdefault(given, {})[each] = copied = [next(copies) for _ in made]
            given = copied[0]
    return known[make]


def distinct_sizes(mask: Bool[Tensor, "B N"]) -> tuple[Tensor, ...]:
    """Return the distinct numbers of real elements, ascending, and the index of each item's number among them."""
    return tuple(torch.unique(mask.sum(dim=1), return_inverse=True))


def padding(mask: Bool[Tensor, "B N"]) -> tuple[Tensor, Tensor]:
    """Return where elements are missing, and which ranks have none after they are sorted."""
    return ~mask, torch.arange(mask.shape[1], device=mask.device) >= mask.sum(dim=1, keepdim=True)


def is_full(mask: Bool[Tensor, "*b"]) -> bool:
    """Return whether a mask is True everywhere, as far as that is known without waiting for its device."""
    return not is_traced() and knows(mask) and bool(on_cpu(mask).all())


indices: Make = functools.partial(torch.nonzero, as_tuple=True)  # type: ignore[assignment]
"""Returns the indices of True values, one tensor for each dimension."""


def places_of(mask: Bool[Tensor, "*b"], device: torch.device | None = None) -> tuple[Int[Tensor, "P"], ...]:
    """Return the indices of True values, on the device of the mask or on another."""
    return tuple(of_values(mask, indices) if device is None else moved_together(indices(on_cpu(mask)), device))


def pairs_of(positives: Bool[Tensor, "A C"]) -> tuple[Int[Tensor, "P"], ...]:
    """Return the row and the column of each positive pair. Where shapes are fixed, a row has exactly one."""
    if not shapes_are_fixed():
        return places_of(positives)
    return torch.arange(len(positives), device=positives.device), positives.byte().argmax(dim=1)


def rows_at(rows: Shaped[Tensor, "A C"], places: Int[Tensor, "P"]) -> Shaped[Tensor, "P C"]:
    """Return ``rows[places]``, without a copy if it is known that the places are those of all rows in their order."""
    if shapes_are_fixed():  # see ``pairs_of``
        return rows
    are_all = len(rows) == len(places) and knows(places) and bool((on_cpu(places) == torch.arange(len(rows))).all())
    return rows if are_all else rows[places]


def mean_where(values: Float[Tensor, "*b"], mask: Bool[Tensor, "*b"]) -> Float[Tensor, ""]:
    """Return the mean of the values where the mask is True, or 0 if it is True nowhere."""
    if knows(mask):
        places = places_of(mask)
        return values[places].mean() if len(places[0]) else values.new_zeros(())
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def masked_softmax(logits: Float[Tensor, "*b N"], mask: Bool[Tensor, "*b N"]) -> Float[Tensor, "*b N"]:
    """Return the softmax over the last axis, with weight exactly 0 on masked elements."""
    return torch.softmax(logits.masked_fill(~mask, MASKED), dim=-1).masked_fill(~mask, 0.0)


def sinusoidal_positions(
    size: int, dim: int, *, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> Float[Tensor, "N D"]:
    """Return sines and cosines of ``w_j * k``, k = 0..size-1, ``w_j = 10000^(-2j/dim)`` (VSE-infinity, eq. 4).

    The printed equation separates w_j and k by a comma. It is their product, as in the Transformer. Even columns are
    sines, odd columns cosines.
    """
    make = _sines_and_cosines.__wrapped__ if is_traced() else _sines_and_cosines
    return make(size, dim, dtype, device)


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def _sines_and_cosines(size: int, dim: int, dtype: torch.dtype, device: torch.device | None) -> Float[Tensor, "N D"]:
    frequencies = torch.exp(torch.arange(0, dim, 2, dtype=dtype, device=device) * (-math.log(10000.0) / dim))
    angles = torch.arange(size, dtype=dtype, device=device).unsqueeze(1) * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :dim]


def interpolate(
    knots: Float[Tensor, "M W"], sizes: Int[Tensor, "U"], longest: int | None = None
) -> Float[Tensor, "U N W"]:
    """Stretch M values linearly over each set size. The first is at position 0, the last at size - 1.

    Positions beyond a size repeat its last value. A size of 1 has the first value.

    Args:
        knots: the values.
        sizes: the sizes, each at least 1.
        longest: N, at least the largest size. None is the largest size.
    """
    last = len(knots) - 1
    step = last / (sizes - 1).clamp(min=1).to(knots.dtype)
    count = int(on_cpu(sizes).max()) if longest is None else longest
    place = (torch.arange(count, device=sizes.device) * step.unsqueeze(1)).clamp(max=last)
    lower = place.floor().long().clamp(max=max(last - 1, 0))
    return torch.lerp(knots[lower], knots[(lower + 1).clamp(max=last)], (place - lower).unsqueeze(-1))


def compact(values: Tensor, mask: Bool[Tensor, "B N"]) -> tuple[Tensor, Bool[Tensor, "B M"]]:
    """Move the real elements of each row to the front, in their order, and cut columns that hold only padding.

    Where shapes are fixed, as in an exported program, no columns are cut.

    Args:
        values: ``[B, N]`` or ``[B, N, L]``.
        mask: True for the elements that stay.

    Returns:
        The moved values (0 where nothing is left) and their mask.
    """
    order, kept = of_values(mask, _order_of_real)
    if values.dim() == 2:
        return values.gather(1, order).masked_fill(~kept, 0), kept
    gathered = values.gather(1, order.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
    return gathered.masked_fill(~kept.unsqueeze(-1), 0), kept


def _order_of_real(mask: Bool[Tensor, "B N"]) -> tuple[Int[Tensor, "B M"], Bool[Tensor, "B M"]]:
    """Return the places of the real elements of each row before those of the others, and which of them are real."""
    lengths, size = mask.sum(dim=1), mask.shape[1]
    order = (size * (~mask).long() + torch.arange(size, device=mask.device)).argsort(dim=1)  # no two keys are equal
    longest = size if shapes_are_fixed() else int(lengths.max())
    return order[:, :longest], position_mask(lengths, longest)


def pad(items: Sequence[Tensor]) -> Inputs:
    """Collate items of different lengths, ``[N_b]`` or ``[N_b, L]``, into padded values and their mask.

    Padding is 0. The values are copied only once.
    """
    lengths = torch.tensor([len(item) for item in items])
    mask = position_mask(lengths, int(lengths.max()))
    values = items[0].new_zeros((*mask.shape, *items[0].shape[1:]))
    values[mask] = torch.cat(tuple(items))
    return Inputs(values, mask)


def keep_at_least_one(keep: Bool[Tensor, "B N"], mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Return ``keep & mask``, except that an item which would lose all elements keeps its first real one."""
    result = keep & mask
    emptied = mask.any(dim=1) & ~result.any(dim=1)
    return result | (mask & (mask.cumsum(dim=1) == 1) & emptied.unsqueeze(1))


def set_max_scores(images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
    """Return ``max_{k,l} v_{ik} . t_{tl}`` over existing embeddings: the cosine at K = 1 (PVSE eq. 5, MV-VSE eq. 6)."""
    if images.vectors.shape[1] == texts.vectors.shape[1] == 1:
        return images.vectors.squeeze(1) @ texts.vectors.squeeze(1).T
    products = images.vectors.flatten(0, 1) @ texts.vectors.flatten(0, 1).T
    return best_of_sets(products, images.mask, texts.mask)


def best_of_sets(
    scores: Float[Tensor, "A C"], images: Bool[Tensor, "I K"], texts: Bool[Tensor, "T L"]
) -> Float[Tensor, "I T"]:
    """Reduce the scores of all I K x T L pairs of embeddings to the best existing pair of each image and text.

    Args:
        scores: the scores of the flattened embeddings, item by item.
        images: which embeddings of the images exist.
        texts: which embeddings of the texts exist.
    """
    if not (is_full(images) and is_full(texts)):
        exists = images.flatten().unsqueeze(1) & texts.flatten().unsqueeze(0)
        scores = scores.masked_fill(~exists, MASKED)
    return scores.view(*images.shape, *texts.shape).amax(dim=(1, 3))


def best_of_pairs(
    scores: Float[Tensor, "P K L"], images: Bool[Tensor, "P K"], texts: Bool[Tensor, "P L"]
) -> Float[Tensor, "P"]:
    """Reduce the scores between the embeddings of an image and of a text to the best existing pair of them."""
    exists = images.unsqueeze(2) & texts.unsqueeze(1)
    return scores.masked_fill(~exists, MASKED).amax(dim=(1, 2))


def at_least_single(values: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
    """Return the values in at least single precision, whichever precision autocast chose."""
    return values if values.dtype == torch.float64 else values.float()


def normalize(vectors: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
    """Scale the last axis to unit L2 length, in at least single precision."""
    vectors = at_least_single(vectors)
    if vectors.device.type == "cpu" or is_traced():
        return F.normalize(vectors, dim=-1)
    units: Tensor = _Units.apply(vectors)  # type: ignore[no-untyped-call]
    return units


class _Units(torch.autograd.Function):
    """``F.normalize`` with the gradient ``(g - (g . u) u) / |x|`` in four operators in place of fourteen."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(1e-12)
        units: Tensor = vectors / lengths
        ctx.save_for_backward(units, lengths)
        return units

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        units, lengths = ctx.saved_tensors
        along = (given.unsqueeze(-2) @ units.unsqueeze(-1)).squeeze(-1)
        return torch.div(torch.addcmul(given, units, along, value=-1), lengths)


def unit_embeddings(embeddings: Tensor | EmbeddingSet, side: str) -> EmbeddingSet:
    """Return the embeddings of one side at unit length. All embeddings of a plain tensor exist.

    Args:
        embeddings: float ``[B, D]``, ``[B, K, D]`` for K embeddings per item, or an EmbeddingSet.
        side: "images" or "texts", for messages.

    Raises:
        DataError: a tensor of another shape or type.
    """
    if isinstance(embeddings, EmbeddingSet):
        return EmbeddingSet(normalize(embeddings.vectors), embeddings.mask, embeddings.residual)
    if not isinstance(embeddings, Tensor):
        raise DataError(f"the {side} are of the type {type(embeddings).__name__}: give a tensor [items, width]")
    if embeddings.dim() not in (2, 3) or not embeddings.is_floating_point() or not embeddings.numel():
        raise DataError(
            f"the {side} are {embeddings.dtype} {list(embeddings.shape)}: give floats [items, width] or "
            f"[items, embeddings per item, width]"
        )
    vectors = normalize(embeddings if embeddings.dim() == 3 else embeddings.unsqueeze(1))
    return EmbeddingSet.full(vectors)


def require_one_space(images: EmbeddingSet, texts: EmbeddingSet) -> None:
    """Raise DataError unless images and texts have embeddings of the same width."""
    widths = images.vectors.shape[2], texts.vectors.shape[2]
    if widths[0] != widths[1]:
        raise DataError(f"the embeddings of images are {widths[0]} wide, those of texts {widths[1]}: use one space")


_FAST_BF16 = ("avx512_bf16", "amx_bf16", "sve_bf16")
"""The instructions with which PyTorch multiplies in bf16 on a processor. Without them it takes 80 times as long."""


def computes_bf16(device: str) -> bool:
    """Return whether a type of device has instructions for products in bf16, as far as PyTorch can tell."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # as in PyTorch 2.6
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(bool(capabilities.get(name)) for name in _FAST_BF16)
