"""The contract of an aggregator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.registry import Maker
from openvse.types import EmbeddingSet, Features, Graph
from openvse_testing.contract import NO_OPTIONS, hold, make_part, part_name, require, require_close

_LENGTHS = (5, 1, 9, 3)


def check_aggregator(part: str | Maker[Aggregator], *, options: Mapping[str, Any] = NO_OPTIONS, width: int = 8) -> None:
    """Check that an aggregator keeps the promises on which encoders, training and search rely.

    Padding, NaN in it and the other items of a batch change nothing. Inference equals training mode. Every parameter
    and every item gets a finite gradient. Order matters only if ``order_aware`` is True. ``fixed_k``, ``indexable`` and
    ``yields_residual`` are correct. Weights can be saved to a file and loaded.

    Args:
        part: the class of the aggregator, or its name in ``AGGREGATORS``.
        options: the options, as in a recipe.
        width: L and D, the width of the features and of the embeddings.

    Raises:
        BrokenContractError: a promise is broken. The message names each.
        RecipeError: the aggregator refuses the options.

    Examples:
        >>> check_aggregator("k_max", options={"k": 2})
    """
    make = AggregatorMaker(part, options, width)
    make()  # so that refused options are an error here and not a broken promise
    hold(make, AGGREGATOR_PROMISES, part_name(part))


@dataclass(frozen=True)
class AggregatorMaker:
    """Makes the aggregator under test, in evaluation mode and double precision. ``width`` is L and D."""

    part: str | Maker[Aggregator]
    options: Mapping[str, Any] = field(default_factory=dict)
    width: int = 8

    def __call__(self, seed: int = 0) -> Aggregator:
        """Return the aggregator with the weights that a seed draws."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            context = {"input_dim": self.width, "embed_dim": self.width}
            return make_part(AGGREGATORS, self.part, self.options, context).double().eval()


def _batch(width: int, extra: int = 0) -> Features:
    """Return ragged items whose values depend only on the item. The padding is garbage of the given length."""
    size = max(_LENGTHS) + extra
    local = torch.full((len(_LENGTHS), size, width), 1e4, dtype=torch.float64)
    whole = torch.zeros(len(_LENGTHS), width, dtype=torch.float64)
    for item, length in enumerate(_LENGTHS):
        generator = torch.Generator().manual_seed(item)
        local[item, :length] = torch.randn(length, width, dtype=torch.float64, generator=generator)
        whole[item] = torch.randn(width, dtype=torch.float64, generator=generator)
    mask = torch.arange(size) < torch.tensor(_LENGTHS).unsqueeze(1)
    return Features(local, mask, whole, graph=_graph(mask))


def _graph(mask: Tensor) -> Graph:
    """Return an event, an action with two entities, and a slot without a node, for items of any length."""
    members = torch.zeros(len(mask), 5, mask.shape[1], dtype=torch.bool)
    members[:, 0] = mask
    members[:, 1, 0] = True  # an action: the first element
    members[:, 2] = mask  # an entity: all elements
    members[torch.arange(len(mask)), 4, mask.sum(dim=1) - 1] = True  # an entity: the last one
    edges = torch.zeros(len(mask), 5, 5, dtype=torch.bool)
    for reads, read in ((1, 0), (1, 2), (2, 1), (1, 4), (4, 1)):
        edges[:, reads, read] = True
    return Graph(members, torch.arange(5).expand(len(mask), -1), edges)


def _one(features: Features, item: int) -> Features:
    length, row = int(features.mask[item].sum()), slice(item, item + 1)
    whole = None if features.pooled is None else features.pooled[row]
    if (graph := features.graph) is not None:
        graph = Graph(graph.members[row, :, :length], graph.roles[row], graph.edges[row])
    return Features(features.local[row, :length], features.mask[row, :length], whole, graph=graph)


def _require_same(actual: EmbeddingSet, expected: EmbeddingSet, message: str) -> None:
    """Compare the embeddings that exist, and the residuals if there are any."""
    require(int(actual.mask.sum()) == int(expected.mask.sum()), f"{message}: the number of embeddings differs")
    require_close(actual.vectors[actual.mask], expected.vectors[expected.mask], message)
    if actual.residual is not None and expected.residual is not None:
        require_close(actual.residual, expected.residual, f"{message}, in the residuals")


def _padding(make: AggregatorMaker) -> None:
    aggregator = make()
    wide = aggregator(_batch(make.width, extra=6))
    _require_same(wide, aggregator(_batch(make.width)), "more padding changes the embeddings")


def _nan(make: AggregatorMaker) -> None:
    aggregator = make()
    clean = _batch(make.width)
    dirty = replace(clean, local=clean.local.masked_fill(~clean.mask.unsqueeze(-1), torch.nan))
    _require_same(
        aggregator(dirty),
        aggregator(clean),
        "NaN in the padding changes the embeddings: use masked_fill, not a product",
    )


def _batch_mates(make: AggregatorMaker) -> None:
    aggregator = make()
    together = _batch(make.width)
    for item in range(len(_LENGTHS)):
        alone = aggregator(_one(together, item))
        _require_same(
            aggregator(together)[item : item + 1],
            alone,
            f"an item of {_LENGTHS[item]} element(s) has other embeddings in a batch than by itself",
        )


def _inference(make: AggregatorMaker) -> None:
    aggregator = make()
    with torch.inference_mode():
        first, second = (aggregator(_batch(make.width)).vectors.clone() for _ in range(2))
    require_close(first, aggregator(_batch(make.width)).vectors.detach(), "inference mode gives other embeddings")
    require(torch.equal(first, second), "two calls in inference mode differ")


def _gradient(make: AggregatorMaker) -> None:
    aggregator = make()
    with torch.no_grad():
        for parameter in aggregator.parameters():
            if not parameter.any():
                parameter.fill_(0.1)  # a gate at 0 blocks the gradient of the layers behind it
    features = _batch(make.width)
    local = features.local.clone().requires_grad_()
    vectors = aggregator(replace(features, local=local)).vectors
    weights = torch.randn(vectors.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    (vectors * weights).sum().backward()
    require(local.grad is not None, "no gradient reaches the local features")
    assert local.grad is not None
    require(bool(local.grad.isfinite().all()), "the gradient of the local features is not finite")
    require(bool((local.grad[~features.mask] == 0).all()), "a gradient reaches the padding")
    require(bool(local.grad[features.mask].any()), "the gradient of all local features is 0")
    for label, parameter in aggregator.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
        require(reached, f"no gradient reaches the parameter {label}")


def _order(make: AggregatorMaker) -> None:
    aggregator = make()
    features = _one(_batch(make.width), 2)
    shuffled = replace(features, local=features.local.flip(1))
    same = torch.allclose(aggregator(features).vectors, aggregator(shuffled).vectors, atol=1e-12)
    require(
        same != aggregator.order_aware,
        "order_aware is True, but the order of the elements does not matter"
        if same
        else "the order of the elements matters, but order_aware is False: declare it",
    )


def _count(make: AggregatorMaker) -> None:
    aggregator = make()
    features = _batch(make.width)
    counts = {aggregator(_one(features, item)).vectors.shape[1] for item in range(len(_LENGTHS))}
    require(
        aggregator.fixed_k is (len(counts) == 1),
        f"fixed_k is {aggregator.fixed_k}, but items get {', '.join(map(str, sorted(counts)))} embedding(s)",
    )
    require(aggregator.fixed_k or not aggregator.indexable, "indexable is True, but fixed_k is False")


def _residual(make: AggregatorMaker) -> None:
    aggregator = make()
    there = aggregator(_batch(make.width)).residual is not None
    require(aggregator.yields_residual is there, f"yields_residual is {aggregator.yields_residual}, but it is {there}")


def _state(make: AggregatorMaker) -> None:
    aggregator, other = make(), make(1)
    with torch.inference_mode():
        other(_batch(make.width))  # fill its caches with the wrong weights
    other.load_state_dict(aggregator.state_dict())
    with torch.inference_mode():
        loaded, expected = other(_batch(make.width)), aggregator(_batch(make.width))
    _require_same(loaded, expected, "loaded weights give other embeddings: register them as parameters or buffers")


def _embeddings(make: AggregatorMaker) -> None:
    aggregator = make()
    embedded = aggregator(_batch(make.width))
    wanted = [*embedded.mask.shape, make.width]
    require(list(embedded.vectors.shape) == wanted, f"the vectors are {list(embedded.vectors.shape)} and not {wanted}")
    require(bool(embedded.mask.any(dim=1).all()), "an item has no embedding")
    require(bool(embedded.vectors[embedded.mask].isfinite().all()), "an embedding is not finite")


AGGREGATOR_PROMISES = (
    _embeddings,
    _padding,
    _nan,
    _batch_mates,
    _inference,
    _gradient,
    _order,
    _count,
    _residual,
    _state,
)
