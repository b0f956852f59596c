"""``studies/synthetic_pooling.py`` repeats the synthetic experiment of VSE-infinity."""

import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

from openvse.aggregators import GPO
from openvse.aggregators.gpo import MLP
from tests.papers.analysis.small import is_png


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "studies"))
    return importlib.import_module("synthetic_pooling")


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
