"""Which stored frames a model sees: PVSE's sampling, on tensors."""

from __future__ import annotations

import pytest
import torch

from openvse.backbones.base import FrameLimit
from openvse.functional import pad
from openvse.media.videos import evenly_spread

LENGTHS = (3, 8, 9, 20, 1)


def clips() -> tuple[torch.Tensor, torch.Tensor]:
    """Frame n of clip c is [c, n]."""
    rows = [torch.stack([torch.full((n,), float(c)), torch.arange(n).float()], 1) for c, n in enumerate(LENGTHS)]
    inputs = pad(rows)
    assert inputs.mask is not None
    return inputs.values.masked_fill(~inputs.mask.unsqueeze(-1), -9.0), inputs.mask


def seen(limit: FrameLimit, *, random: bool) -> list[list[int]]:
    values, mask = limit(*clips(), random=random)
    assert all(
        set(row[real][:, 0].tolist()) == {float(c)} for c, (row, real) in enumerate(zip(values, mask, strict=True))
    )
    return [row[real][:, 1].int().tolist() for row, real in zip(values, mask, strict=True)]


@pytest.mark.medium
def test_training_sees_a_run_of_consecutive_frames_from_everywhere() -> None:
    torch.manual_seed(0)
    limit = FrameLimit(8)
    firsts = set()
    for _ in range(200):
        for frames, length in zip(seen(limit, random=True), LENGTHS, strict=True):
            assert frames == list(range(frames[0], frames[0] + min(8, length)))
        firsts.add(seen(limit, random=True)[3][0])
    assert firsts == set(range(13))


def test_evaluation_and_even_sampling_see_frames_spread_evenly() -> None:
    expected = [list(range(n)) if n <= 8 else evenly_spread(n, 8).tolist() for n in LENGTHS]
    assert seen(FrameLimit(8), random=False) == expected
    assert seen(FrameLimit(8, "even"), random=True) == expected


def test_frames_that_were_hidden_do_not_count() -> None:
    values = torch.arange(6.0).view(1, 6, 1)
    mask = torch.tensor([[True, False, True, False, True, True]])
    kept, real = FrameLimit(2)(values, mask, random=False)
    assert kept[real].flatten().tolist() == [2.0, 5.0]


def test_short_clips_pass_as_they_are() -> None:
    values, mask = clips()
    kept, real = FrameLimit(20)(values, mask, random=True)
    assert kept is values and real is mask
