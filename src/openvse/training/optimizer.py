"""The optimiser of a recipe, and the mean of the weights over the last steps.

Parameters are grouped by their learning-rate multiplier; some are frozen. The learning rate at each step is in
``schedule.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from openvse.errors import RecipeError, nearest
from openvse.specs import AverageSpec, OptimizerSpec


def build_optimizer(
    spec: OptimizerSpec, parameters: Sequence[tuple[str, nn.Parameter]]
) -> torch.optim.Optimizer:
    """Return the optimiser of a recipe; a group of parameters for each learning-rate ``multiplier``."""
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


class WeightAverage:
    """An exponential moving mean of the weights that train: ``mean = d * mean + (1 - d) * weight`` after each step.

    After t steps, d is at most ``(1 + t) / (10 + t)``. Otherwise the initial weights would dominate the mean of a short
    run. The means are in single precision.
    """

    def __init__(self, spec: AverageSpec, parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        self._decay = spec.decay
        self._parameters = list(parameters)
        self._means = [parameter.detach().float().clone() for _, parameter in parameters]
        self._steps = 0

    @torch.no_grad()
    def update(self) -> None:
        """Update the mean after a step of the optimiser."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        for mean, (_, parameter) in zip(self._means, self._parameters, strict=True):
            mean.lerp_(parameter.detach().to(mean.dtype), 1.0 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the means as its weights inside a ``with``, and its own weights again afterwards."""
        own = [parameter.detach().clone() for _, parameter in self._parameters]
        self._put(self._means)
        try:
            yield
        finally:
            self._put(own)

    def state(self) -> dict[str, object]:
        """Return what a checkpoint keeps."""
        means = {name: mean for (name, _), mean in zip(self._parameters, self._means, strict=True)}
        return {"steps": self._steps, "means": means}

    def load_state(self, state: Mapping[str, object]) -> None:
        """Restore what ``state`` returned; raise KeyError if it is from another model."""
        steps, means = state["steps"], state["means"]
        if not isinstance(steps, int) or not isinstance(means, Mapping):
            raise KeyError("average")
        self._steps = steps
        for own, (name, _) in zip(self._means, self._parameters, strict=True):
            own.copy_(means[name])

    @torch.no_grad()
    def _put(self, weights: Sequence[Tensor]) -> None:
        for (_, parameter), weight in zip(self._parameters, weights, strict=True):
            parameter.copy_(weight)
