"""The sort and the sum in Triton equal those of PyTorch: on a GPU if there is one, otherwise in its interpreter."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from test_ranked import assert_equals_pytorch, distinct, plain_sum, some_masks

from openvse.kernels import is_usable, ranked, sort_elements, sum_ranked
from openvse.kernels.build import SWITCH, load_triton

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Switch the kernels on; without a GPU, also for the CPU, where the interpreter runs them."""
    monkeypatch.setenv(SWITCH, "triton")
    load_triton.cache_clear()
    kernel = load_triton("ranked_triton")
    assert kernel is not None
    monkeypatch.setattr(ranked, "_kernel", lambda device: kernel)
    yield
    load_triton.cache_clear()


@pytest.mark.medium
@pytest.mark.usefixtures("asked_for")
@pytest.mark.parametrize("elements", [1, 2, 3, 8, 13, 36, 64])
def test_sum_and_gradients_equal_those_of_pytorch(elements: int) -> None:
    torch.manual_seed(elements)
    local, mask = distinct(3, elements, 130).to(DEVICE), some_masks(3, elements).to(DEVICE)
    weights = torch.rand(3, elements + 2, device=DEVICE)
    assert_equals_pytorch(local, mask, weights)


@pytest.mark.medium
@pytest.mark.usefixtures("asked_for")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_sorting_and_its_gradient(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.arange(40 * 5).view(40, 5)[torch.randperm(40)]  # whole numbers, which all types hold
    local = values.to(DEVICE, kind).repeat(4, 1, 1).requires_grad_()
    mask = some_masks(4, 40).to(DEVICE)
    rows = sort_elements(local, mask)
    given = torch.randn(rows.shape).to(rows)
    rows.backward(given)
    assert torch.equal(sort_elements(local.detach(), mask), rows)
    assert rows.dtype == local.grad.dtype == kind
    for item in range(4):
        order = local[item, mask[item]].argsort(dim=0, descending=True)
        assert torch.equal(rows[item, : len(order)], local[item, mask[item]].gather(0, order))
        assert not rows[item, len(order) :].any()
        assert torch.equal(local.grad[item, mask[item]].gather(0, order), given[item, : len(order)])
    assert not local.grad[~mask].any()


@pytest.mark.usefixtures("asked_for")
def test_half_precision_is_summed_in_single_precision() -> None:
    local, weights = torch.randn(2, 20, 33, device=DEVICE).bfloat16(), torch.rand(2, 20, device=DEVICE)
    mask = some_masks(2, 20).to(DEVICE)
    expected = plain_sum(local.float(), mask, weights)
    torch.testing.assert_close(sum_ranked(local, mask, weights), expected.bfloat16(), rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("asked_for")
def test_strides_change_nothing() -> None:
    wide = torch.randn(3, 20, 90, device=DEVICE)
    mask, weights = some_masks(3, 9).to(DEVICE), torch.rand(3, 9, device=DEVICE)
    part = wide[:, 2:20:2, 5:75]
    expected = sum_ranked(part.contiguous(), mask, weights)
    assert torch.equal(sum_ranked(part, mask, weights), expected)
    assert torch.equal(sum_ranked(part.transpose(1, 2).contiguous().transpose(1, 2), mask, weights), expected)


@pytest.mark.usefixtures("asked_for")
def test_special_values_are_sorted_as_pytorch_sorts_them() -> None:
    inf, nan = float("inf"), float("nan")
    local = torch.tensor([3.0, -inf, nan, inf, -0.0, -nan, 1e-45, -2.0], device=DEVICE).view(1, 8, 1)
    mask = torch.ones(1, 8, dtype=torch.bool, device=DEVICE)
    rows = sort_elements(local.requires_grad_(), mask)
    torch.testing.assert_close(rows, local.sort(dim=1, descending=True).values, equal_nan=True)
    rows.backward(torch.arange(8.0, device=DEVICE).view(1, 8, 1))
    assert local.grad.flatten().tolist()[:2] == [3, 7]
    mask[0, 2] = mask[0, 5] = False  # and minus infinity is before padding
    assert sort_elements(local.detach(), mask).flatten().tolist()[5:] == [-inf, 0, 0]
    first = torch.tensor([[1.0, 0, 0, 0, 0, 0, 0, 0]], device=DEVICE)
    assert sum_ranked(-local.detach(), mask, first).item() == inf  # what is without a weight does not count


def test_which_sets_it_sorts(asked_for: None) -> None:
    sets = torch.randn(2, 64, 4, device=DEVICE)
    assert is_usable(sets) and is_usable(sets.half()) and is_usable(sets.bfloat16())
    assert not is_usable(torch.randn(2, 65, 4, device=DEVICE)) and not is_usable(sets.double())


@pytest.mark.parametrize("setting", [None, "0", "1"])
def test_it_is_only_used_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, setting: str | None) -> None:
    if setting is None:
        monkeypatch.delenv(SWITCH, raising=False)
    else:
        monkeypatch.setenv(SWITCH, setting)
    load_triton.cache_clear()
    assert load_triton("ranked_triton") is None
    load_triton.cache_clear()


def test_without_triton_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SWITCH, "triton")
    monkeypatch.setitem(sys.modules, "openvse.kernels.ranked_triton", None)
    load_triton.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert load_triton("ranked_triton") is None
    assert "OPENVSE_KERNELS=triton has no effect" in caplog.text
    load_triton.cache_clear()


COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from openvse.kernels import ranked_triton

TYPES = {"x": "*bf16", "out": "*bf16", "given": "*bf16", "of_x": "*bf16", "mask": "*u8", "ranks": "*u8"}
TYPES |= {"weights": "*fp32", "of_weights": "*fp32"}
CONSTANTS = {"LOG": 5, "WIDTH": 128, "KEEP": True}
for name in ("sum", "sum_gradients", "sort", "sort_gradient"):
    kernel = getattr(ranked_triton, f"_{name}_kernel")
    constants = {key: value for key, value in CONSTANTS.items() if key in kernel.arg_names}
    signature = {key: "constexpr" if key in constants else TYPES.get(key, "i32") for key in kernel.arg_names}
    made = compile(ASTSource(kernel, signature, constants), GPUTarget("cuda", 80, 32), {"num_warps": 4})
    print(name, ".local" in made.asm["ptx"], len(made.asm["cubin"]) > 1000)
"""


@pytest.mark.slow
def test_it_compiles_for_a_gpu_that_is_not_there(tmp_path: os.PathLike[str]) -> None:
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    variables["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{name} False True" for name in ("sum", "sum_gradients", "sort", "sort_gradient")
    ]
