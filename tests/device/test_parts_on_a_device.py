"""Every part computes on an emulated device what it computes on a CPU, with the same gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.test_aggregator_contract import OPTIONS
from openvse.aggregators import AGGREGATORS
from openvse.encoders.projections import PROJECTIONS
from openvse.objectives import CRITERIA, MINERS, TERMS
from openvse.similarities import SIMILARITIES
from openvse.types import EmbeddingSet, Features, ScoredBatch, moved
from openvse_testing.aggregators import AggregatorMaker, _batch
from openvse_testing.parts import made_part
from tests.device.emulated_device import Waits
from tests.failures import Failures
from tests.objectives.set_batches import embeddings, scored


def there(features: Features) -> Features:
    """Return features on the device, as a batch that was moved makes them."""
    assert features.pooled is not None and features.graph is not None
    return Features(
        features.local.to("cuda"),
        moved(features.mask, "cuda"),
        features.pooled.to("cuda"),
        graph=features.graph.to("cuda"),
    )


def compared(part: nn.Module, given: Any, on_device: Any, value: Callable[[nn.Module, Any], Tensor]) -> None:
    """Compare what a part makes of the same values on both devices, and the gradients of its weights."""
    one, other = part.train(), copy.deepcopy(part).to("cuda").train()
    found = []
    for module, values in ((one, given), (other, on_device)):
        torch.manual_seed(0)
        result = value(module, values)
        if result.requires_grad:  # a part may have no weights
            (result * torch.arange(result.numel(), device=result.device).view_as(result).cos()).sum().backward()
        gradients = [weight.grad for weight in module.parameters() if weight.grad is not None]
        found.append([result.detach().cpu(), *(each.cpu() for each in gradients)])
    assert len(found[0]) == len(found[1])
    for here, away in zip(*found, strict=True):
        torch.testing.assert_close(away, here, rtol=1e-6, atol=1e-8)


@pytest.mark.medium
@pytest.mark.parametrize("name", AGGREGATORS)
def test_an_aggregator(name: str, waits: Waits) -> None:
    failures = Failures()
    for options in [{}, *OPTIONS.get(name, [])]:
        with failures.of(options):
            part = AggregatorMaker(name, options)()
            batch = _batch(8)
            compared(part, batch, there(batch), lambda made, features: made(features).vectors)
    assert not failures, failures


@pytest.mark.medium
@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_projection(name: str, waits: Waits) -> None:
    torch.manual_seed(0)
    part = PROJECTIONS.get(name)(input_dim=8, embed_dim=8).double()
    if not any(True for _ in part.parameters()):
        return
    batch = _batch(8)
    clean = batch.local.masked_fill(~batch.mask.unsqueeze(-1), 0.0)
    values = (clean, batch.mask), (clean.to("cuda"), moved(batch.mask, "cuda"))
    compared(part, *values, lambda made, pair: made(*pair).masked_fill(~pair[1].unsqueeze(-1), 0.0))


def on_cuda(batch: ScoredBatch) -> ScoredBatch:
    def side(one: EmbeddingSet) -> EmbeddingSet:
        made = one.to("cuda")
        return EmbeddingSet(made.vectors, moved(one.mask, "cuda"), made.residual, made.source)

    return ScoredBatch(batch.scores.to("cuda"), moved(batch.positives, "cuda"), side(batch.images), side(batch.texts))


@pytest.mark.medium
@pytest.mark.parametrize("name", TERMS)
def test_a_term_and_its_diagnostics(name: str, waits: Waits) -> None:
    torch.manual_seed(0)
    term = made_part(TERMS, name)
    batch = scored(embeddings(4, 3, seed=0), embeddings(4, 2, seed=1))
    away = copy.deepcopy(term).to("cuda")
    values = []
    for part, given in ((term, batch), (away, on_cuda(batch))):
        torch.manual_seed(1)
        with torch.no_grad():
            numbers: Sequence[Tensor] = [part(given), *part.diagnostics(given).values()]
        values.append([float(each) for each in numbers])
    assert values[1] == pytest.approx(values[0], rel=1e-6)


@pytest.mark.parametrize("name", MINERS)
def test_a_miner(name: str, waits: Waits) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, positives = torch.randn(6, 6, generator=generator), torch.eye(6, dtype=torch.bool)
    chosen = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        mined = MINERS.get(name)().to(device)(scores.to(device), moved(positives, device))
        chosen.append(mined.cpu())
    assert torch.equal(*chosen)


@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion(name: str, waits: Waits) -> None:
    scores, positives = torch.rand(5, 5, dtype=torch.float64), torch.eye(5, dtype=torch.bool)
    part = CRITERIA.get(name)().double()
    here = part(scores, positives, ~positives)
    away = part.to("cuda")(scores.to("cuda"), moved(positives, "cuda"), moved(~positives, "cuda"))
    torch.testing.assert_close(away.cpu(), here)


@pytest.mark.parametrize("name", [name for name in SIMILARITIES if name not in ("fused", "hierarchical")])
def test_a_similarity(name: str, waits: Waits) -> None:
    images, texts = embeddings(4, 3, seed=0), embeddings(6, 2, seed=1)
    part = SIMILARITIES.get(name)()
    torch.testing.assert_close(
        copy.deepcopy(part).to("cuda")(images.to("cuda"), texts.to("cuda")).cpu(), part(images, texts)
    )
