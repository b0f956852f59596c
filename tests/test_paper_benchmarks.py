"""The benchmarks that reproduce figures and tables of papers measure what they say."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

from openvse.aggregators import GPO
from openvse.aggregators.gpo import MLP
from openvse.errors import OpenVSEError
from tests.analysis.small import is_png, plain, small_model


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module(name)


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("synthetic_pooling", monkeypatch)


def slow_pattern(name: str, size: int) -> list[float]:
    """The coefficients of one size from the words of the paper."""
    if name == "L":
        falling = [size - k for k in range(size)]
        return [value / sum(falling) for value in falling]
    top = {"A": size, "M-1": 1, "M-10": min(10, size), "T-50%": math.ceil(size / 2)}[name]
    return [1 / top if k < top else 0.0 for k in range(size)]


def test_a_pattern_is_what_the_paper_says(synthetic: ModuleType) -> None:
    sizes = [1, 2, 9, 10, 11, 37]
    for name, pattern in synthetic.PATTERNS.items():
        expected = torch.zeros(len(sizes), max(sizes))
        for row, size in enumerate(sizes):
            expected[row, :size] = torch.tensor(slow_pattern(name, size))
        torch.testing.assert_close(pattern(torch.tensor(sizes)), expected)


@pytest.mark.medium
def test_learning_comes_near_the_pattern(synthetic: ModuleType) -> None:
    torch.manual_seed(0)
    gpo = GPO(input_dim=64, embed_dim=64, generator=MLP)
    before = synthetic.coefficient_errors(gpo, "M-1")
    theta, truth = gpo.coefficients(torch.tensor([57]))[0].tolist(), slow_pattern("M-1", 57)
    mean = sum((a - b) ** 2 for a, b in zip(theta, truth, strict=True)) / 57
    assert before[57 - 10].item() == pytest.approx(math.sqrt(mean), abs=1e-6)
    synthetic.learn(gpo, "M-1", synthetic.Schedule(steps=60, num_sets=8, width=64), seed=0)
    assert (synthetic.coefficient_errors(gpo, "M-1")[10:91] < 0.1 * before[10:91]).all()


@pytest.mark.medium
def test_the_tables_put_ours_beside_the_published(synthetic: ModuleType, tmp_path: Path) -> None:
    assert len(synthetic.PUBLISHED) == 4 * 3 * 5
    results = [
        synthetic.DesignResult(
            design,
            pattern,
            [level if size in synthetic.SEEN else 10 * level for size in synthetic.TESTED],
            [0.02] * 50,
            2.0,
        )
        for level, design in zip((0.004, 0.003, 0.002, 0.0001), synthetic.DESIGNS, strict=True)
        for pattern in synthetic.PATTERNS
    ]
    seen, unseen = synthetic.tables(results[::-1]).split("Unseen sizes, 10 to 19 / 101 to 120:")
    assert "| interpolation | .004 (0) | .004 (.065) | .004 (.030) | .004 (.011) | .004 (.004) |" in seen
    assert "| sin/cos + BiGRU | 0 (0) | 0 (.005) | 0 (.010) | 0 (.006) | 0 (0) |" in seen
    assert "| .020 / .020 (.052 / .018) |" in unseen
    synthetic.draw(results, tmp_path / "figure.png")
    assert is_png(tmp_path / "figure.png")


@pytest.mark.medium
def test_times_grow_with_the_gallery(monkeypatch: pytest.MonkeyPatch) -> None:
    times = script("retrieval_time", monkeypatch)
    calls: list[int] = []
    assert len(times.time_calls(lambda: calls.append(1), 3)) == 3 and len(calls) == 4
    tokens = {"name": "tokens"}
    fused = small_model(tokens, tokens, similarity={"name": "fused", "fusion": {"name": "score_attention"}})
    views = small_model({"name": "multi_view", "num_views": 2})
    towers = {"one": plain(), "two": views, "pairs": fused}
    timed = times.time_retrieval(towers, [50, 10], repeats=1, tokens=5)
    assert [(t.name, t.kind, t.size) for t in timed] == [
        ("one", "1 embedding", 10), ("one", "1 embedding", 50),
        ("two", "2 embeddings", 10), ("two", "2 embeddings", 50),
        ("pairs", "pairs, 5 tokens", 10), ("pairs", "pairs, 5 tokens", 50),
    ]  # fmt: skip
    assert all(t.low <= t.seconds <= t.high for t in timed)


@pytest.mark.medium
def test_poolings_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = script("pooling_speed", monkeypatch)
    names = ["mean", "gpo", "pie_net", "lip", "k_max+mean"]
    assert {"lip", "k_max+mean"} < {*speed.POOLINGS}
    speeds = speed.time_poolings(names, elements=3, width=8, batch=3, repeats=1)
    assert [each.name for each in speeds] == names
    assert all(each.forward > 0 and each.training > 0 for each in speeds)
    with pytest.raises(OpenVSEError, match="gpoo"):
        speed.time_poolings(["gpoo"])
