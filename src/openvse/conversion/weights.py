"""The weights of a checkpoint: their names there and in openvse, and the checks before they are copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from openvse.errors import CheckpointError

Weights: TypeAlias = dict[str, Tensor]
# The beginning of a name in the file and in openvse. None if the weight has no effect on an embedding.
Names: TypeAlias = Mapping[str, str | None]

NOT_LEARNED = "num_batches_tracked"  # a count of batches, which older versions of PyTorch lack
MAX_LAYERS = 1000  # of one kind, because a file with more names would need far more memory than its size
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def dense_weights(state: Mapping[Any, Any]) -> Weights:
    """Return the tensors of a state dictionary, without the ``module.`` of data-parallel training. None is copied.

    A tensor is refused if it is empty, sparse, quantised or without data, or claims more elements than its storage
    holds, because every operation on it would take more memory than the size of the file suggests.
    """
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    for name, tensor in tensors.items():
        _expect_dense(name, tensor)
    return {".".join(part for part in name.split(".") if part != "module"): t for name, t in tensors.items()}


def _expect_dense(name: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise CheckpointError(
            f"its weights {name!r} are a sparse or quantised tensor, or one without data, which the released code "
            f"does not save: get the file from its authors, or save it again with dense tensors"
        )
    if not tensor.numel():
        raise CheckpointError(f"its weights {name!r} are empty, so the file is incomplete: download it again")
    held = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.numel() > held:
        raise CheckpointError(
            f"its weights {name!r} claim {tensor.numel():,} elements, but the file holds {held:,} of them. It is "
            f"damaged, or made to fill the memory: get it from its authors"
        )


def expect_own_storage(weights: Weights) -> None:
    """Raise CheckpointError if weights share so much storage that copies would take more than the file holds."""
    claimed = sum(weight.numel() * weight.element_size() for weight in weights.values())
    held, counted = 0, 0
    storages = [weight.untyped_storage() for weight in weights.values()]
    for start, stop in sorted((each.data_ptr(), each.data_ptr() + each.nbytes()) for each in storages):
        held += max(0, stop - max(start, counted))
        counted = max(counted, stop)
    if claimed > held:
        raise CheckpointError(
            f"its weights claim {claimed:,} bytes, but the file holds {held:,} of them. Several weights share their "
            f"storage, which the released code does not do: get the file from its authors"
        )


def expect_fit(weights: Weights, wanted: Mapping[str, Tensor]) -> None:
    """Compare weights with the state of a model, maybe on the meta device, by name, shape and number type."""
    shared = wanted.keys() & weights.keys()
    faults = {
        "lacks": [n for n in wanted if n not in weights and not n.endswith(NOT_LEARNED)],
        "has no place for": [n for n in weights if n not in wanted],
        "has other shapes in": [n for n in shared if weights[n].shape != wanted[n].shape],
        "has other types of numbers in": [
            n for n in shared if (weights[n].dtype in REAL) is not wanted[n].is_floating_point()
        ],
    }
    for what, names in faults.items():
        if names:
            name = min(names)
            given = f"{_described(weights[name])} for " if name in weights and name in wanted else ""
            needed = f" ({given}{_described(wanted[name])})" if name in wanted else ""
            raise CheckpointError(
                f"it {what} {len(names)} weights of the model that its options describe, such as {name!r}{needed}: it "
                f"is incomplete, or from a changed copy of the repository"
            )


@torch.no_grad()
def fill(model: nn.Module, weights: Weights) -> None:
    """Copy weights that fit into a model one at a time, so that memory never holds a second copy of all."""
    wanted = model.state_dict()
    expect_fit(weights, wanted)
    for name, weight in weights.items():
        wanted[name].copy_(_single(name, weight) if weight.dtype in REAL else weight)


def _single(name: str, weight: Tensor) -> Tensor:
    single = weight.detach().float()
    bad = single.numel() - int(single.isfinite().sum())
    if bad:
        raise CheckpointError(
            f"{bad:,} of the {single.numel():,} numbers in its weights {name!r} are NaN or infinite. Its training "
            f"diverged, or the file is damaged: take another checkpoint of the run, or download it again"
        )
    return single


def renamed(weights: Weights, names: Names) -> Weights:
    """Rename weights by the longest prefix that fits. Raise CheckpointError if a weight is not in the list."""
    result: Weights = {}
    for name, weight in weights.items():
        prefix = max((begin for begin in names if name.startswith(begin)), key=len, default=None)
        if prefix is None:
            raise CheckpointError(
                f"it holds weights {name!r}, which the released code does not have: give an unchanged model"
            )
        if (ours := names[prefix]) is not None:
            result[ours + name.removeprefix(prefix)] = weight
    return result


def again(weights: Weights, begin: str, ours: str) -> Weights:
    """Return the weights whose names have a beginning, with another beginning."""
    return {ours + name.removeprefix(begin): w for name, w in weights.items() if name.startswith(begin)}


def shape(weights: Weights, name: str, axes: int) -> tuple[int, ...]:
    """Return the shape of a weight that every checkpoint of the kind has, with so many axes."""
    if name not in weights:
        raise CheckpointError(f"it has no weights {name!r}: the file is incomplete, or of another project")
    sizes = tuple(weights[name].shape)
    if len(sizes) != axes:
        raise CheckpointError(
            f"its weights {name!r} have the shape {sizes}, but must have {axes} axes: the file is of another "
            f"project, or from a changed copy of the repository"
        )
    return sizes


def count(weights: Weights, begin: str) -> int:
    """Return the number of numbered names with a beginning: ``layer.0.``, ``layer.1.``, ..."""
    numbers = {name.removeprefix(begin).partition(".")[0] for name in weights if name.startswith(begin)}
    if len(numbers) > MAX_LAYERS:
        raise CheckpointError(
            f"it names {len(numbers):,} layers {begin!r}, more than any released network has "
            f"({MAX_LAYERS} are allowed): get the file from its authors"
        )
    return len(numbers)


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
