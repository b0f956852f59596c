import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openvse.errors import DataError
from openvse.evaluation.comparison import (
    Comparison,
    Difference,
    MeasuredRun,
    Row,
    contrast_rows,
    paired_differences,
    sign_test,
)
from tests.naming import names, refusal


def exact(better: int, worse: int) -> float:
    count = better + worse
    tail = sum(math.comb(count, k) for k in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / 2**count)


@pytest.mark.medium
@given(better=st.integers(0, 60), worse=st.integers(0, 60), equal=st.integers(0, 5))
def test_the_sign_test_is_exact(better: int, worse: int, equal: int) -> None:
    first = np.zeros(better + worse + equal)
    second = np.r_[np.ones(better), -np.ones(worse), np.zeros(equal)]
    found = sign_test(first, second)
    assert (found.better, found.worse, found.equal) == (better, worse, equal)
    assert found.p == exact(better, worse)
    assert sign_test(second, first).p == found.p


def test_known_p_values_of_the_sign_test() -> None:
    assert sign_test(np.zeros(10), np.r_[np.ones(9), -1.0]).p == pytest.approx(22 / 1024)
    assert sign_test(np.zeros(3), np.zeros(3)).p == 1.0
    many = sign_test(np.zeros(25_000), np.r_[np.ones(12_600), -np.ones(12_400)])
    # The normal approximation.
    assert many.p == pytest.approx(math.erfc(199 / math.sqrt(2 * 25_000)), rel=0.01)


def test_the_sign_test_refuses_other_queries_and_nan() -> None:
    assert names(refusal(DataError, sign_test, np.zeros(3), np.zeros(4)), "3", "4")
    assert names(refusal(DataError, sign_test, np.zeros(2), np.array([0.0, np.nan])), "NaN")


def paired_difference(first: float, second: float, one: np.ndarray, other: np.ndarray) -> Difference:
    return paired_differences({"rsum": first}, {"rsum": second}, {"rsum": one}, {"rsum": other})["rsum"]


def test_pairing_makes_a_small_difference_visible() -> None:
    generator = np.random.default_rng(0)
    shared, own = generator.normal(0, 5, 4000), generator.normal(0, 0.5, 4000)
    paired = paired_difference(50.0, 52.0, 50 + shared, 52 + shared + own)
    assert paired.change == 2.0
    assert paired.verdict == 1
    assert paired.interval == pytest.approx((1.02, 2.98), abs=0.05)
    assert paired.smallest == pytest.approx(2.8 * 0.5, rel=0.03)
    unpaired = paired_difference(50.0, 52.0, 50 + shared, 52 + generator.permutation(shared))
    assert unpaired.verdict == 0
    assert paired_difference(52.0, 50.0, 52 + shared + own, 50 + shared).verdict == -1


def test_what_was_never_drawn_has_no_difference() -> None:
    nothing = {"rsum": np.full(3, np.nan)}, {"rsum": np.zeros(3)}
    assert paired_differences({"rsum": 0.0}, {"rsum": 0.0}, *nothing) == {}


def run(value: float, seed: int, *, num_queries: int = 50) -> MeasuredRun:
    generator = np.random.default_rng(seed)
    shared = np.random.default_rng(99).normal(size=500)
    return MeasuredRun(
        f"run{seed}", "", {"rsum": value}, {"rsum": value + shared}, {"i2t": generator.normal(size=num_queries)}
    )


def test_seeds_make_one_row_and_widen_the_interval() -> None:
    alone = contrast_rows(Comparison("toy", {}, 0, 500, (Row("a", (run(10.0, 0),)), Row("b", (run(12.0, 1),)))))
    seeds = Row("b", (run(11.0, 1), run(13.0, 2)))
    several = contrast_rows(Comparison("toy", {}, 0, 500, (Row("a", (run(10.0, 0),)), seeds)))
    assert (seeds.mean, seeds.spread) == ({"rsum": 12.0}, {"rsum": pytest.approx(math.sqrt(2))})
    assert alone.rows[1].spread == {}
    one, other = (each.contrasts[0].differences["rsum"] for each in (alone, several))
    assert one.change == other.change == 2.0
    assert one.interval == pytest.approx((2.0, 2.0))  # both runs gain on the same images
    assert other.interval == pytest.approx((1.0, 3.0))


def test_skewed_ranks_do_not_favour_a_row_of_one_run() -> None:
    """Three runs that are equally good: a single one is best as often as it is worst."""
    generator = np.random.default_rng(0)
    ranks = [-np.exp(generator.normal(0, 2, 3000)) for _ in range(3)]
    runs = [MeasuredRun(str(n), "", {"rsum": 1.0}, {"rsum": np.ones(3)}, {"i2t": each}) for n, each in enumerate(ranks)]
    rows = Row("a", tuple(runs[:2])), Row("b", (runs[2],))
    signs = contrast_rows(Comparison("toy", {}, 0, 3, rows)).contrasts[0].signs["i2t"]
    assert signs.p > 0.05
    assert signs.better == pytest.approx(1000, rel=0.1)
    assert sign_test(rows[0].queries()["i2t"], rows[1].queries()["i2t"]).p < 1e-6


def test_one_row_and_other_queries_are_refused() -> None:
    assert names(refusal(DataError, contrast_rows, Comparison("toy", {}, 0, 500, (Row("a", (run(1.0, 0),)),))), " a:")
    rows = Row("a", (run(1.0, 0),)), Row("b", (run(1.0, 1, num_queries=49),))
    assert names(refusal(DataError, contrast_rows, Comparison("toy", {}, 0, 500, rows)), "a and b")
