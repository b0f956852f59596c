"""The mean of the weights of two models, which keeps the knowledge of both."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openvse.aggregators.composed import Gated
from openvse.corpus.trained_on import also_trained_on
from openvse.errors import ModelError
from openvse.model.base import Model
from openvse.model.start import Origin, take_weights
from openvse.tasks import task_kind
from openvse.training.kind import Request


@dataclass(frozen=True)
class Blend:
    """The weighted mean of two models, the share of the second, and the score of each share that was tried."""

    model: Model
    share: float
    metric: str
    scores: tuple[tuple[float, float], ...]
    warnings: tuple[str, ...] = ()


def blend(first: Model, second: Model, request: Request, *, num_shares: int = 11) -> Blend:
    """Average the weights of two models, ``(1 - w) * first + w * second``, by the share w that is the best on a split.

    Words and answers that one of the two models lacks have the vectors of the other. Where the second model has a gated
    pooling on top of the parts of the first, w opens its gate. Of ``num_shares`` shares, evenly spread from 0 to 1, the
    smallest of equally good ones wins. Use a validation split, never the test split.
    """
    if first.task != second.task:
        raise ModelError(
            f"the first model {first.purpose}, the second {second.purpose}: blend a model and one that began from it"
        )
    model, ends = _ends(first, second)
    model.provenance = dict(second.provenance)
    if data := model.provenance.get("data"):
        model.provenance["data"] = also_trained_on(data, first.provenance)
    kind, scores = task_kind(model.task), list[tuple[float, float]]()
    metric, warnings = "", dict[str, None]()
    for share in torch.linspace(0, 1, num_shares).tolist():
        _put(model, ends, share)
        evaluation = kind.evaluate([model], request)
        warnings |= dict.fromkeys(evaluation.warnings)
        metric, score = evaluation.score()
        scores.append((round(share, 6), score))
    share, score = max(scores, key=lambda each: (each[1], -each[0]))
    _put(model, ends, share)
    of = [first.fingerprint, second.fingerprint]
    model.provenance["blend"] = {"share": share, "of": of, "split": request.split, metric: score}
    return Blend(model.eval(), share, metric, tuple(scores), tuple(warnings))


def _ends(first: Model, second: Model) -> tuple[Model, tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Return a model that holds the words and gated poolings of both, and the weights of either in its shape."""
    wider = first if _size(first) > _size(second) else second
    other = second if wider is first else first
    _refuse_lost(wider, other)
    model = copy.deepcopy(wider)
    for origin in take_weights(model, other):
        if (gated := _gated_by(model, origin)) is not None:
            gated.gate.data.zero_()  # the other model has no pooling here: a closed gate gives its vectors exactly
        elif not origin.taken:
            raise ModelError(
                f"the models cannot be blended, because {origin.part} differs ({origin.note}): blend two of the same "
                f"parts, where the second began from the first"
            )
    inner = {name: weight.clone() for name, weight in model.state_dict().items()}
    own = {name: weight.clone() for name, weight in wider.state_dict().items()}
    return model, ((inner, own) if wider is second else (own, inner))


@torch.no_grad()
def _put(model: Model, ends: Sequence[dict[str, Tensor]], share: float) -> None:
    """Give a model the mean of two sets of weights, with the integers of the second."""
    first, second = ends
    for name, weight in model.state_dict().items():
        if weight.is_floating_point():
            weight.copy_(torch.lerp(first[name], second[name], share))
        else:
            weight.copy_(second[name])


def _size(model: Model) -> tuple[int, int]:
    """Return the number of gated poolings and of words and answers. The larger model can hold the smaller one."""
    return sum(isinstance(module, Gated) for module in model.modules()), len(_entries(model))


def _entries(model: Any) -> list[str]:
    """Return the words and answers that a model has a row for, in their order."""
    vocabulary = getattr(getattr(model, "text", None), "encoder", None)
    vocabulary, answers = getattr(vocabulary, "vocabulary", None), getattr(model, "answers", None)
    words = [] if vocabulary is None else [f"word {word!r}" for word in vocabulary.words]
    return words + ([] if answers is None else [f"answer {answer!r}" for answer in answers.answers])


def _gated_by(model: Model, origin: Origin) -> Gated | None:
    """Return the aggregator whose pooling belongs to an origin, if the other model lacks this pooling."""
    side, _, part = origin.part.partition(".")
    aggregator = getattr(getattr(model, side, None), "aggregator", None)
    return aggregator if part == "aggregator.pool" and isinstance(aggregator, Gated) else None


def _refuse_lost(wider: Any, other: Any) -> None:
    """Raise ModelError where the model with more words and answers lacks some of the other's."""
    if lost := sorted({*_entries(other)} - {*_entries(wider)}):
        raise ModelError(
            f"each of the models has words or answers that the other lacks ({len(lost)}, such as the {lost[0]}): blend "
            f"two models of which one began from the other, so that its vocabulary grew"
        )
