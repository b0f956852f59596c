import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openvse.encoders.augmentations import AUGMENTATIONS, GridAugmentation, RegionAugmentation
from openvse.errors import RecipeError
from openvse.functional import position_mask


def full(items: int, size: int) -> torch.Tensor:
    return torch.ones(items, size, dtype=torch.bool)


def test_region_mode_drops_a_fifth_on_average() -> None:
    torch.manual_seed(0)
    kept = RegionAugmentation()(full(2000, 36)).float().mean()
    assert abs(kept - 0.8) < 0.01


def test_grid_mode_spares_a_fifth_of_the_images() -> None:
    torch.manual_seed(0)
    dropped = 1 - GridAugmentation()(full(4000, 400)).float().mean(dim=1)
    # An augmented image of 400 cells loses none with probability 0.96^400 at most: below 1e-7.
    untouched = (dropped == 0).float().mean()
    assert abs(untouched - 0.2) < 0.03
    augmented = dropped[dropped > 0]
    assert abs(augmented.mean() - 0.2 * 0.6) < 0.005  # u in [0.2, 1] has mean 0.6
    assert augmented.min() < 0.05 and 0.17 < augmented.max() < 0.3


@pytest.mark.medium
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    rate=st.sampled_from([0.0, 0.2, 0.99]),
    mode=st.sampled_from(["none", "region", "grid"]),
    seed=st.integers(0, 1000),
)
def test_features_never_vanish_and_padding_never_appears(lengths, rate, mode, seed) -> None:
    torch.manual_seed(seed)
    mask = position_mask(torch.tensor(lengths), 6)
    kept = AUGMENTATIONS.get(mode)(**({} if mode == "none" else {"rate": rate}))(mask)
    assert not (kept & ~mask).any()
    assert kept.any(dim=1).all()
    if mode == "none" or rate == 0:
        assert torch.equal(kept, mask)


@pytest.mark.parametrize("name", AUGMENTATIONS.names())
def test_evaluation_hides_nothing_and_there_is_no_state(name: str) -> None:
    augmentation, mask = AUGMENTATIONS.get(name)(), full(3, 9)
    assert augmentation.eval()(mask) is mask and augmentation.state_dict() == {}


def test_numbers_are_drawn_in_the_order_they_always_were() -> None:
    """The rate of each image first: a seed hides what it hid in earlier versions."""
    torch.manual_seed(3)
    rate = torch.full((50, 1), 0.4) * torch.empty(50, 1).uniform_(0.2, 1.0) * (torch.rand(50, 1) < 0.8)
    expected = torch.rand(50, 30) >= rate
    torch.manual_seed(3)
    assert torch.equal(GridAugmentation(rate=0.4)(full(50, 30)), expected)


@pytest.mark.parametrize("rate", [1.0, -0.1])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(RecipeError, match=f"{rate}"):
        GridAugmentation(rate=rate)
