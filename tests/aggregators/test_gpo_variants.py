"""GPO's variants against loops written from their definitions, and what must not change about the default."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise, product

import pytest
import torch
from slow_loops import assert_equals_loop, gru_step, ragged, ranked, softmax
from torch import Tensor

from openvse.aggregators import GPO, GPODataDependent
from openvse.aggregators.gpo import GENERATORS, POSITIONS
from openvse.errors import RecipeError
from tests.failures import Failures
from tests.naming import names, refusal

WIDTH = 3
LENGTHS = [4, 1, 6, 4]


def linear(weight: Tensor, x: Tensor) -> Tensor:
    return torch.stack([sum(w * v for w, v in zip(row, x, strict=True)) for row in weight])


def sinusoid(position: int, width: int) -> Tensor:
    angles = [position / 10000 ** (2 * (j // 2) / width) for j in range(width)]
    waves = [math.sin(a) if j % 2 == 0 else math.cos(a) for j, a in enumerate(angles)]
    return torch.tensor(waves, dtype=torch.float64)


def slow_codes(gpo: GPO, size: int) -> list[Tensor]:
    table = dict(gpo.positions.named_parameters()).get("weight")
    if table is None:
        return [sinusoid(position, gpo.positions.position_dim) for position in range(size)]
    return [table[min(position, len(table) - 1)] for position in range(size)]


def slow_bigru(network: torch.nn.Module, codes: list[Tensor]) -> list[Tensor]:
    """Two GRUs, one from each end of this set alone, averaged."""
    weights = dict(network.named_parameters())
    both = []
    for suffix, order in (("", codes), ("_reverse", codes[::-1])):
        h, states = torch.zeros(network.width, dtype=torch.float64), []
        for x in order:
            h = gru_step(weights, suffix, x, h)
            states.append(h)
        both.append(states)
    return [(forward + backward) / 2 for forward, backward in zip(both[0], both[1][::-1], strict=True)]


def layer_norm(x: Tensor, weight: Tensor) -> Tensor:
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    return torch.stack([w * (v - mean) / (variance + 1e-5).sqrt() for v, w in zip(x, weight, strict=True)])


def slow_transformer(network: torch.nn.Module, codes: list[Tensor]) -> list[Tensor]:
    """Four heads of scaled dot products, residual and norm, feed-forward with ReLU, residual and norm."""
    w = dict(network.named_parameters())
    to_query, to_key, to_value = w["self_attn.in_proj_weight"].chunk(3)
    queries, keys, values = ([linear(m, x).chunk(4) for x in codes] for m in (to_query, to_key, to_value))
    states = []
    for x, query in zip(codes, queries, strict=True):
        heads = []
        for head in range(4):
            scale = math.sqrt(len(query[head]))
            weights = softmax([(query[head] * key[head]).sum() / scale for key in keys])
            heads.append(sum(a * value[head] for a, value in zip(weights, values, strict=True)))
        read = layer_norm(x + linear(w["self_attn.out_proj.weight"], torch.cat(heads)), w["norm1.weight"])
        hidden = torch.stack([max(v, v * 0) for v in linear(w["linear1.weight"], read)])
        states.append(layer_norm(read + linear(w["linear2.weight"], hidden), w["norm2.weight"]))
    return states


def slow_mlp(network: torch.nn.Module, codes: list[Tensor]) -> list[Tensor]:
    hidden = [linear(network[0].weight, x) + network[0].bias for x in codes]
    return [torch.stack([max(v, v * 0) for v in x]) for x in hidden]


def slow_interpolation(network: torch.nn.Module, codes: list[Tensor]) -> list[Tensor]:
    """Straight lines between learned points, the first at the maximum and the last at the minimum."""
    last, states = len(network.knots) - 1, []
    for position in range(len(codes)):
        place = position / max(len(codes) - 1, 1) * last
        lower = min(int(place), max(last - 1, 0))
        share, upper = place - lower, min(lower + 1, last)
        states.append((1 - share) * network.knots[lower] + share * network.knots[upper])
    return states


SLOW = {"bigru": slow_bigru, "transformer": slow_transformer, "mlp": slow_mlp, "interpolation": slow_interpolation}


def weigh(logits: list[Tensor], vectors: list[Tensor]) -> Tensor:
    """Softmax over the positions at temperature 0.1, each column of logits alone, and the weighted sum."""
    columns = [softmax([logit[column] / 0.1 for logit in logits]) for column in range(len(logits[0]))]
    theta = [torch.stack(weights) for weights in zip(*columns, strict=True)]
    return sum(weights * vector for weights, vector in zip(theta, vectors, strict=True)).unsqueeze(0)


def slow_gpo(gpo: GPO, generator: str, local: Tensor, pooled: Tensor) -> Tensor:
    states = SLOW[generator](gpo.generator, slow_codes(gpo, len(local)))
    return weigh([linear(gpo.score.weight, state) for state in states], ranked(local))


def slow_data_dependent(gpo: GPODataDependent, local: Tensor, pooled: Tensor) -> Tensor:
    vectors = ranked(local)
    inputs = [torch.cat((sinusoid(k, gpo.position_dim), vector)) for k, vector in enumerate(vectors)]
    states = slow_bigru(gpo.generator, inputs)
    return weigh([linear(gpo.score.weight, state) for state in states], vectors)


@pytest.mark.medium
def test_a_variant_equals_its_loop() -> None:
    failures = Failures()
    for (generator, positions), per_dimension in product(
        [
            ("bigru", "sinusoidal"),
            ("bigru", "learned"),
            ("transformer", "sinusoidal"),
            ("transformer", "learned"),
            ("mlp", "sinusoidal"),
            ("mlp", "learned"),
            ("interpolation", "sinusoidal"),
        ],
        [False, True],
    ):
        with failures.of(per_dimension, generator, positions):
            torch.manual_seed(0)
            gpo = GPO(
                input_dim=WIDTH,
                embed_dim=WIDTH,
                position_dim=8,
                hidden_dim=5,
                generator=GENERATORS.get(generator),
                positions=POSITIONS.get(positions),
                num_positions=4,  # fewer than the largest set has
                per_dimension=per_dimension,
            ).double()
            assert_equals_loop(gpo, partial(slow_gpo, gpo, generator), ragged(LENGTHS, WIDTH))
    assert not failures, failures


def test_data_dependent_coefficients_equal_the_loop() -> None:
    torch.manual_seed(0)
    gpo = GPODataDependent(input_dim=WIDTH, embed_dim=WIDTH, position_dim=6, hidden_dim=5).double()
    assert_equals_loop(gpo, lambda *item: slow_data_dependent(gpo, *item), ragged(LENGTHS, WIDTH))


def test_data_dependent_coefficients_differ_between_items_of_one_size() -> None:
    torch.manual_seed(0)
    gpo = GPODataDependent(input_dim=1, embed_dim=1).double()
    features = ragged([5, 5], 1)
    grown = features.local.clone().requires_grad_()
    gpo.pool(grown, features.mask).sum().backward()
    ordered = [grad[order] for grad, order in zip(grown.grad, features.local.argsort(dim=1), strict=True)]
    assert not torch.allclose(ordered[0], ordered[1])


def test_data_dependent_works_under_bf16_autocast() -> None:
    torch.manual_seed(0)
    gpo, features = GPODataDependent(input_dim=16, embed_dim=16), ragged([5, 9], 16)
    local = features.local.float()
    with torch.autocast("cpu", torch.bfloat16):
        low = gpo.pool(local.bfloat16(), features.mask)
    torch.testing.assert_close(low.float(), gpo.pool(local, features.mask), rtol=0.05, atol=0.05)


def test_the_default_keeps_the_names_of_its_weights() -> None:
    shapes = {name: tuple(w.shape) for name, w in GPO(input_dim=64, embed_dim=64).state_dict().items()}
    gru = {"weight_ih_l0": (96, 32), "weight_hh_l0": (96, 32), "bias_ih_l0": (96,), "bias_hh_l0": (96,)}
    directions = {f"generator.{name}{end}": s for end in ("", "_reverse") for name, s in gru.items()}
    assert shapes == directions | {"score.weight": (1, 32)}


def test_an_interpolation_starts_near_the_mean() -> None:
    torch.manual_seed(0)
    theta = GPO(input_dim=1, embed_dim=1, generator=GENERATORS.get("interpolation")).coefficients(torch.tensor([10]))
    torch.testing.assert_close(theta, torch.full((1, 10), 0.1), rtol=1.0, atol=0)


def test_an_mlp_does_not_know_the_size() -> None:
    """Ratios of its coefficients are those of any larger set."""
    gpo = GPO(input_dim=1, embed_dim=1, generator=GENERATORS.get("mlp")).double()
    short, long = gpo.coefficients(torch.tensor([4, 9]))
    for (a, b), (c, d) in zip(pairwise(short[:4]), pairwise(long[:4]), strict=True):
        torch.testing.assert_close(a / b, c / d)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_positions": 0}, "num_positions"),
        ({"generator": GENERATORS.get("transformer"), "position_dim": 30}, "position_dim"),
        ({"generator": GENERATORS.get("interpolation"), "positions": POSITIONS.get("learned")}, "positions"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], named: str) -> None:
    assert names(refusal(RecipeError, GPO, input_dim=2, embed_dim=2, **options), named)
