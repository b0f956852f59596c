"""Momentum contrast of USER (Zhang, Ji, Wang, Pang and Li, TIP 2024), as a wrapper of the task of retrieval.

A moving average of the two towers embeds each batch too. Queues keep its embeddings of the last images and texts, which
are further negatives of later batches. Neither is a part of the model that a run saves.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from openvse.assembly.parts import build_part
from openvse.functional import MASKED
from openvse.model.two_tower import TwoTower
from openvse.objectives import CRITERIA, MINERS, Criterion
from openvse.objectives.base import RankingTerm
from openvse.retrieval.training import RetrievalTask, gather_batch
from openvse.training.optimizer import has_prefix
from openvse.training.task import Step
from openvse.types import Batch, EmbeddingSet, Movable, Relevance, ScoredBatch, changed, on_cpu
from openvse_alignment.kind import MomentumSpec


class Unified(Criterion):
    """``log(1 + sum_n e^(scale (s_n - threshold))) / scale - positive log(1 + [s_p]_+)`` (USER, released code).

    Args:
        scale: the factor of the scores.
        threshold: the score above which a negative counts.
        positive: the weight of the second logarithm. The released loss of a batch has it once for both directions,
            which is 0.5 here. Its loss of the queues has it in each.
    """

    def __init__(self, *, scale: float = 90.0, threshold: float = 0.5, positive: float = 1.0) -> None:
        super().__init__()
        self.scale, self.threshold, self.positive = scale, threshold, positive

    def pair_loss(
        self, positive: Float[Tensor, "P"], scores: Float[Tensor, "P C"], negatives: Bool[Tensor, "P C"]
    ) -> Float[Tensor, "P"]:
        exponents = (self.scale * (scores - self.threshold)).masked_fill(~negatives, MASKED)
        total = F.pad(exponents, (1, 0)).logsumexp(dim=1)
        return total / self.scale - self.positive * positive.clamp(min=0).log1p()


@dataclass(frozen=True)
class Kept(Movable):
    """Embeddings of the average, the oldest first, each with the group of its item (``groups``)."""

    embedded: EmbeddingSet
    groups: Int[Tensor, "Q"]

    def then(self, later: Kept, most: int) -> Kept:
        """Return the last ``most`` of these, and the later ones behind them."""
        start = max(0, len(self.groups) - most)
        return Kept(
            EmbeddingSet.concatenate([self.embedded[start:], later.embedded]),
            torch.cat([self.groups[start:], later.groups]),
        )


class Memory:
    """The moving average of the towers of a model, ``average = m average + (1 - m) weight``, and its queues.

    As in the released code, the average follows before it embeds the batch of a step, in training mode. It shares the
    weights that never train with the model.

    Args:
        model: the model that trains.
        decay: m.
        queue: the number of images, and of texts, of earlier batches that are kept.
        frozen: prefixes of weights that train in some phases only.

    Attributes:
        images: the queue of images, with those of the present batch at its end. None before the first step.
        texts: the same of texts.
    """

    def __init__(self, model: TwoTower, decay: float, queue: int, frozen: Collection[str] = ()) -> None:
        self.model, self._decay, self._queue, self._frozen = model, decay, queue, frozen
        self._towers: nn.ModuleDict | None = None
        self._own: set[str] = set()
        self.images: Kept | None = None
        self.texts: Kept | None = None

    def follow(self) -> nn.ModuleDict:
        """Let the average follow the model, and return its towers. The first call copies the towers."""
        now = nn.ModuleDict({"image": self.model.image, "text": self.model.text})
        if self._towers is None:
            trained = {name for name, weight in now.named_parameters() if weight.requires_grad or self._waits(name)}
            shared = {id(weight): weight for name, weight in now.named_parameters() if name not in trained}
            self._towers = copy.deepcopy(now, shared).train()
            self._own = trained | {name for name, _ in now.named_buffers()}
            for name, mean in self._towers.named_parameters():
                if name in trained:
                    mean.requires_grad_(False)
            return self._towers
        weights = dict(now.named_parameters())
        with torch.no_grad():
            for name, mean in self._towers.named_parameters():
                if name in self._own:
                    mean.lerp_(weights[name].to(mean.dtype), 1.0 - self._decay)
        return self._towers

    def push(self, images: Kept, texts: Kept) -> None:
        """Put the present batch behind the queues. Embeddings that are too old are dropped."""
        self.images = images if self.images is None else self.images.then(images, self._queue)
        self.texts = texts if self.texts is None else self.texts.then(texts, self._queue)

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps: nothing before the first step."""
        if self._towers is None or self.images is None or self.texts is None:
            return {}
        weights = {name: value for name, value in self._towers.state_dict().items() if name in self._own}
        kept = {
            side: {"vectors": each.embedded.vectors, "mask": each.embedded.mask, "groups": each.groups}
            for side, each in (("images", self.images), ("texts", self.texts))
        }
        return {"weights": weights, **kept}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state``."""
        if not state:
            return
        if self._towers is None:
            self.follow()
        assert self._towers is not None
        weights = {name: value for name, value in state["weights"].items() if name in self._own}
        self._towers.load_state_dict(weights, strict=False)
        self.images, self.texts = (
            Kept(EmbeddingSet(state[side]["vectors"], state[side]["mask"]), state[side]["groups"]).to(self.model.device)
            for side in ("images", "texts")
        )

    def _waits(self, name: str) -> bool:
        """Return whether a phase freezes a weight, which then trains in others."""
        return any(has_prefix(name, prefix) for prefix in self._frozen)


class QueueContrast(RankingTerm):
    """Contrasts the pairs of a batch, of which the average embeds one side, with the items in its queue.

    ``L = reduce_(i,t) [ l(s(v_i, t'_t), s(v_i, T')) + l(s(v'_i, t_t), s(V', t_t)) ]``, where ``'`` marks what the
    average has embedded, and T' and V' are the queues. Items of the anchor's group are no negatives.
    """

    memory: Memory

    @staticmethod
    def of(spec: MomentumSpec) -> QueueContrast:
        """Return the term of a recipe. The task gives it a memory."""
        miner = build_part(MINERS, spec.miner, "momentum.miner")
        criterion = build_part(CRITERIA, spec.criterion, "momentum.criterion")
        return QueueContrast(miner=miner, criterion=criterion, reduction=spec.reduction)

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        images, texts, score = self.memory.images, self.memory.texts, self.memory.model.similarity
        assert images is not None and texts is not None  # a step has pushed its batch
        from_images, from_texts = score(batch.images, texts.embedded), score(images.embedded, batch.texts).mT
        own_images, own_texts = images.groups[-len(batch.images) :], texts.groups[-len(batch.texts) :]
        return self._against(from_images, batch.positives, own_images, texts.groups) + self._against(
            from_texts, changed(batch.positives, Tensor.t), own_texts, images.groups
        )

    def _against(
        self,
        scores: Float[Tensor, "A Q+C"],
        positives: Bool[Tensor, "A C"],
        own: Int[Tensor, "A"],
        groups: Int[Tensor, "Q+C"],
    ) -> Float[Tensor, ""]:
        """Return the loss of the rows as anchors. The candidates of the batch, the last ones, are only positives."""
        earlier = scores.shape[1] - positives.shape[1]
        never = own.unsqueeze(1) == groups
        never[:, earlier:] = True
        positives = changed(positives, lambda each: F.pad(each, (earlier, 0)))
        return self.reduce(self.criterion(scores, positives, self.miner(scores, never)))

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return the number of images in the queue."""
        assert self.memory.images is not None
        return {"queue": batch.scores.new_tensor(float(len(self.memory.images.groups) - len(batch.images)))}

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state of the memory, which is a part of a checkpoint and of no model."""
        return self.memory.state()

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the memory."""
        self.memory.load_state(state)


class MomentumTask(RetrievalTask):
    """Retrieval with one more term in each objective, for which each batch is embedded twice.

    Args:
        task: the task that is wrapped, which is used up.
        spec: the section of the recipe.
        term: the term.
    """

    def __init__(self, task: RetrievalTask, spec: MomentumSpec, term: QueueContrast) -> None:
        vars(self).update(vars(task))  # opened already: only the step differs
        frozen = {prefix for phase in self.recipe.training.phases for prefix in phase.frozen}
        self.memory = term.memory = Memory(self.model, spec.decay, spec.queue, frozen)
        self._groups = torch.from_numpy(groups(self._learned.relevance))
        for objective in self.objectives:
            objective.terms["momentum"] = term
            objective.weights["momentum"] = spec.weight

    def step(self, wrapped: nn.Module, batch: Batch, phase: int) -> Step:
        """Embed the batch with the average first, and put the result behind the queues."""
        self._remember(batch.copied(self.recipe.data.copies))
        return super().step(wrapped, batch, phase)

    @torch.no_grad()
    def _remember(self, batch: Batch) -> None:
        towers, device = self.memory.follow(), batch.positives.device
        with self.accelerator.autocast():
            images, texts = _alone(towers["image"](batch.images)), _alone(towers["text"](batch.texts))
        images, texts, _ = gather_batch(images, texts, batch.positives, batch.image_keys, batch.partners)
        of_images = self._groups[on_cpu(batch.image_keys)]
        of_texts = of_images[on_cpu(batch.positives).byte().argmax(dim=0)]
        self.memory.push(
            *(
                Kept(embedded, torch.tensor(gather_object(own.tolist()), device=device))
                for embedded, own in ((images, of_images), (texts, of_texts))
            )
        )


def _alone(embedded: EmbeddingSet) -> EmbeddingSet:
    """Return what scores need of embeddings, in single precision at least."""
    return EmbeddingSet(embedded.vectors.to(torch.promote_types(embedded.vectors.dtype, torch.float32)), embedded.mask)


def groups(relevance: Relevance) -> Int[np.ndarray, "I"]:
    """Return a number for each image, the same for images that share a text, or that a chain of such images links.

    All texts of an image belong to its group. So two items of different groups are never relevant to each other.
    """
    of_images, of_texts = np.arange(relevance.num_images), np.full(relevance.num_texts, relevance.num_images)
    while True:
        before = of_images.copy()
        np.minimum.at(of_texts, relevance.texts, of_images[relevance.images])
        np.minimum.at(of_images, relevance.images, of_texts[relevance.texts])
        if (before == of_images).all():
            return of_images
