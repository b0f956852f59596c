"""The mean of a model's weights over the last steps, which is validated and kept instead of the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from openvse.specs import AverageSpec


class WeightAverage:
    """An exponential moving mean of the weights that train: ``mean = d * mean + (1 - d) * weight`` after each step.

    After t steps, d is at most ``(1 + t) / (10 + t)``. Otherwise the initial weights would dominate the mean of a short
    run.

    Args:
        spec: the decay.
        parameters: the parameters of the model that train, with their names. The means are in single precision.
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
