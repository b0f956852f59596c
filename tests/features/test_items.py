"""What a feature store and the arrays of a data set share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openvse.errors import StoreError
from openvse.features.arrays import num_real
from openvse.features.store import as_inputs, positions_of


def test_positions_come_in_the_order_of_the_question() -> None:
    known = {"a": 0, "b": 1, "c": 2}
    assert positions_of(["c", "a", "c"], known, source="it", remedy="look").tolist() == [2, 0, 2]
    assert positions_of([], known, source="it", remedy="look").dtype == np.int64


@pytest.mark.parametrize(
    ("missing", "named"), [("x", "1 of 2 items: 'x'"), ("vwxy", "4 of 5 items: 'v', 'w', 'x', ...")]
)
def test_the_first_three_missing_items_are_named(missing: str, named: str) -> None:
    with pytest.raises(StoreError) as caught:
        positions_of(["a", *missing], {"a": 0}, source="the store", remedy="extract again")
    assert str(caught.value) == f"the store has no features of {named}; extract again"


def test_a_batch_is_float32_with_a_mask() -> None:
    stored = np.array([[[1.0], [2.0]], [[3.0], [0.0]]], dtype=np.float16)
    inputs = as_inputs(stored, np.array([2, 1]))
    assert inputs.values.dtype == torch.float32 and inputs.values.flatten().tolist() == [1, 2, 3, 0]
    assert inputs.mask is not None and inputs.mask.tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([[1, 0], [0, 0], [0, 2], [0, 0]], 3), ([[0, 0], [0, 0]], 0), ([[0, 1]], 1), ([[float("nan"), 0]], 1)],
)
def test_rows_of_zeros_at_the_end_are_padding(rows: list[list[float]], expected: int) -> None:
    assert num_real(np.array(rows)) == expected
    assert num_real(np.zeros((0, 2))) == 0
