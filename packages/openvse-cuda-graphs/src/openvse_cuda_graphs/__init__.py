"""Steps of training as graphs of a GPU: what a step starts is recorded once, and then starts as one piece.

A graph does the same to the same places in memory. So a batch is copied into buffers, the learning rates are tensors,
and values decide no shape (``kernels.is_captured``): what is random or has a length is drawn on the CPU before, lengths
are rounded up, and each shape has a graph of its own. The first batch of a shape is taken without one, beside the other
work of the GPU, which also makes what all graphs share, such as the state of the optimiser. The second is captured, and
the others are replayed. No GPU has run this yet.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from openvse.encoders.augmentations import Augmentation, TokenAugmentation
from openvse.encoders.transformers_text import TransformersText
from openvse.errors import TrainingError, message_of
from openvse.kernels import captured
from openvse.model.two_tower import TwoTower
from openvse.retrieval.training import RetrievalTask
from openvse.similarities.scores import Fused
from openvse.training.task import Step
from openvse.training.trainer import Trainer
from openvse.types import Batch, Inputs, on_cpu

LENGTHS = 4
"""Lengths are rounded up to a multiple of this."""

MOST = 16
"""Graphs of a run. Batches of further shapes are taken without one."""

Take = Callable[[Any, int], Step]
"""Takes a step on a batch in a phase: forward and backward pass, clipping and optimiser."""


def captured_steps(trainer: Trainer) -> Take:
    """Return what takes the steps of a trainer as graphs, or its own way after a note that says why they cannot be."""
    task, device = trainer.task, trainer.accelerator.device.type
    if not isinstance(task, RetrievalTask) or device != "cuda":
        reason: str | None = f"the task is {task.recipe.task} on {device}, not retrieval on a GPU"
    elif (reason := why_not(task)) is None:
        return CapturedSteps(trainer.take, task, trainer.optimizer).take
    trainer.watcher.note(f"training.graphs: no step is captured: {reason}")
    return trainer.take


@contextmanager
def capturing() -> Iterator[None]:
    """Let ``kernels.is_captured`` be true of this thread."""
    captured.add(get_ident())
    try:
        yield
    finally:
        captured.discard(get_ident())


def why_not(task: RetrievalTask) -> str | None:
    """Return why no step of a task can be captured, or None."""
    accelerator, training, data, model = task.accelerator, task.recipe.training, task.recipe.data, task.model
    several, scaled = accelerator.num_processes > 1, accelerator.scaler is not None
    backbone, image = model.image.encoder.backbone, model.image.encoder.augmentation
    text = getattr(model.text.encoder, "augmentation", None)
    reasons = {
        "there are several processes": several,
        "training.precision is fp16, or training.chunk_size is set": scaled or training.chunk_size is not None,
        "a fusion reads only the pairs that have a gradient": isinstance(model.similarity, Fused),
        "the images are read from their files": task.features is None,
        "an image has several captions in a batch": data.copies > 1 or data.captions_per_image is not None,
        "the augmentation of images sees places": type(image).hide_at is not Augmentation.hide_at,
        "padding counts": any(getattr(part, "count_padding", False) for part in model.modules()),
        "values decide shapes in the image encoder": backbone.frame_limit is not None or backbone.class_token,
        "values decide shapes in the text encoder": not isinstance(text, TokenAugmentation),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def fixed(batch: Batch, model: TwoTower) -> Batch | None:
    """Return a batch of which no value decides a shape, with what chance decides.

    None means that an image has several captions, or a caption several images.
    """
    positives = on_cpu(batch.positives)
    if any(bool((positives.sum(dim=side) != 1).any()) for side in (0, 1)):
        return None
    image, text = model.image.encoder, model.text.encoder
    texts, words = batch.texts.values, cast(Tensor, batch.texts.mask)
    augmentation = cast(TokenAugmentation, text.augmentation)
    real = image.augmentation(batch.images.mask)
    if not texts.is_floating_point():
        texts, words = augmentation(texts, words)
    elif isinstance(text, TransformersText) and augmentation.mode != "none":
        words = text.hide(words)
    return replace(batch, images=rounded(batch.images.values, real), texts=rounded(texts, words))


def rounded(values: Tensor, mask: Tensor) -> Inputs:
    """Return values and their mask with as much padding as their shape needs to come again."""
    missing = -mask.shape[1] % LENGTHS
    return Inputs(F.pad(values, (0, 0) * (values.dim() - 2) + (0, missing)), F.pad(mask, (0, missing)))


@dataclass(frozen=True)
class Captured:
    """A graph as a function, the step that was captured, and the values of its terms, which each call renews."""

    replay: Callable[[], None]
    step: Step
    values: Tensor


class CapturedSteps:
    """Takes steps of training as graphs. The learning rates of the optimiser are set before each step."""

    def __init__(self, take: Take, task: RetrievalTask, optimizer: torch.optim.Optimizer) -> None:
        self._take, self._model, self._optimizer = take, task.model, optimizer
        self._rates = [torch.zeros((), device=task.accelerator.device) for _ in optimizer.param_groups]
        self._stream, self._pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()  # type: ignore[no-untyped-call]
        self._buffers: dict[Hashable, Tensor] = {}
        self._graphs: dict[Hashable, Captured | None] = {}

    def take(self, batch: Batch, phase: int) -> Step:
        """Take a step, as a graph if the batch allows it."""
        if (drawn := fixed(batch, self._model)) is None:
            return self._take(batch, phase)
        held, shapes = self._held(drawn)
        key = phase, *shapes
        for rate, group in zip(self._rates, self._optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        if (graph := self._graphs.get(key)) is None:
            if key not in self._graphs or sum(each is not None for each in self._graphs.values()) == MOST:
                self._graphs[key] = None
                return self._beside(held, phase)
            graph = self._graphs[key] = self._capture(held, phase)
        graph.replay()
        terms = dict(zip(graph.step.terms, graph.values.clone().unbind(), strict=True))
        return usable(graph.step, terms, batch.description)

    def _held(self, batch: Batch) -> tuple[Batch, list[torch.Size]]:
        """Copy a batch into the buffers of its shapes, which graphs share."""
        shapes: list[torch.Size] = []

        def hold(tensor: Tensor) -> Tensor:
            where = len(shapes), tensor.shape
            shapes.append(tensor.shape)
            if where not in self._buffers:
                self._buffers[where] = torch.empty_like(tensor)
            return self._buffers[where].copy_(tensor)

        return batch.map(hold), shapes

    def _beside(self, held: Batch, phase: int) -> Step:
        """Take a step without a graph, on the stream of the graphs."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), capturing():
            step = self._take(held, phase)
        torch.cuda.current_stream().wait_stream(self._stream)
        return usable(step, step.terms, held.description)

    def _capture(self, held: Batch, phase: int) -> Captured:
        """Capture a step. Nothing is computed, so the weights stay."""
        graph, groups = torch.cuda.CUDAGraph(), self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, tensor in zip(groups, self._rates, strict=True):
            group |= {"lr": tensor, "capturable": True}
        mode = "thread_local"  # other threads, which send batches, may go on
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode), capturing():
                step = self._take(held, phase)
                values = torch.stack([term.detach() for term in step.terms.values()])
        except RuntimeError as error:
            raise TrainingError(f"a step cannot be captured: set training.graphs=off ({message_of(error)})") from error
        for group, rate in zip(groups, rates, strict=True):
            group |= {"lr": rate, "capturable": False}
        return Captured(graph.replay, step, values)


def usable(step: Step, terms: Mapping[str, Tensor], description: str) -> Step:
    """Return a step with these terms, whose other numbers are computed as the step was: without values for shapes."""
    at_collapse, diagnostics = capturing()(step.at_collapse), capturing()(step.diagnostics)
    return replace(step, terms=terms, description=description, at_collapse=at_collapse, diagnostics=diagnostics)
