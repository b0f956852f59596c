"""Captions in groups of similar length give the states of the whole batch."""

import pytest
import torch
from torch import Tensor, nn

from openvse.encoders.transformers_text import SMALLEST_GROUP, append_last, fill_positions, in_length_groups


class Recurrent(nn.Module):
    """Reads from both ends, so that padding or another order would show."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True, bidirectional=True, dtype=torch.float64)
        self.widths: list[tuple[int, ...]] = []

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        self.widths.append(tuple(values.shape[:2]))
        packed = nn.utils.rnn.pack_padded_sequence(
            values * mask.unsqueeze(-1), ends_of(mask), batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=mask.shape[1])
        return states


def ends_of(mask: Tensor) -> Tensor:
    return (mask * torch.arange(1, mask.shape[1] + 1)).amax(dim=1).clamp(min=1)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    lengths = torch.randint(1, 30, (70,))
    lengths[3] = 30
    mask = torch.arange(30) < lengths.unsqueeze(1)
    mask &= (torch.rand(70, 30) < 0.8) | (torch.arange(30) == 0)  # some tokens are hidden, the last one too
    return torch.randn(70, 30, 3, dtype=torch.float64), mask


def test_states_and_gradients_are_those_of_the_whole_batch(batch: tuple[Tensor, Tensor]) -> None:
    values, mask = batch
    model = Recurrent()
    grouped = in_length_groups(model, values, mask)
    assert len(model.widths) == 70 // SMALLEST_GROUP
    assert max(width for _, width in model.widths) == int(ends_of(mask).max())
    assert sum(rows * width for rows, width in model.widths) < 0.8 * mask.numel()
    whole = model(values, mask)
    torch.testing.assert_close(grouped[mask], whole[mask])
    weights = [*model.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad(grouped[mask].square().sum(), weights),
        torch.autograd.grad(whole[mask].square().sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_few_captions_stay_together(batch: tuple[Tensor, Tensor]) -> None:
    values, mask = batch
    model = Recurrent()
    in_length_groups(model, values[: 2 * SMALLEST_GROUP - 1], mask[: 2 * SMALLEST_GROUP - 1])
    assert len(model.widths) == 1


def test_a_caption_without_a_token_to_read_has_states(batch: tuple[Tensor, Tensor]) -> None:
    values, mask = batch
    mask[5] = False
    assert in_length_groups(Recurrent(), values, mask).isfinite().all()


IDS = torch.tensor([[5, 6, 7], [8, 9, 0]])
MASK = torch.tensor([[True, True, True], [True, True, False]])


def test_padding_stands_behind_or_before() -> None:
    behind, place = fill_positions(IDS, MASK, size=4, padding=1, left=False)
    assert behind.tolist() == [[5, 6, 7, 1], [8, 9, 1, 1]]
    assert place[MASK].tolist() == [0, 1, 2, 0, 1]
    before, place = fill_positions(IDS, MASK, size=4, padding=1, left=True)
    assert before.tolist() == [[1, 5, 6, 7], [1, 1, 8, 9]]
    assert place[MASK].tolist() == [1, 2, 3, 2, 3]


def test_a_caption_may_fill_all_positions() -> None:
    for left in (False, True):
        full, _ = fill_positions(IDS[:1], MASK[:1], size=3, padding=1, left=left)
        assert full.tolist() == [[5, 6, 7]]


def test_the_last_state_follows_the_real_ones() -> None:
    states = torch.arange(6.0).reshape(2, 3, 1)
    wider, mask = append_last(states, MASK, torch.tensor([[10.0], [20.0]]))
    assert [row[real].flatten().tolist() for row, real in zip(wider, mask, strict=True)] == [[0, 1, 2, 10], [3, 4, 20]]
