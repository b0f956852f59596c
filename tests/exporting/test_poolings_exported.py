"""Every pooling as an ONNX program, against PyTorch at every set size up to 200."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from openvse.aggregators import AGGREGATORS
from openvse.assembly.parts import build_part
from openvse.exporting.forms import with_tables
from openvse.exporting.programs import traced, write_onnx
from openvse.functional import position_mask
from openvse.runtime.model import open_program
from openvse.specs import Part
from openvse.types import Features

pytestmark = pytest.mark.slow

WIDTH, LONGEST = 8, 200
OPTIONS = (
    {"name": "gpo", "per_dimension": True},
    {"name": "gpo", "generator": "transformer", "positions": "learned"},
    {"name": "gpo", "generator": "interpolation"},
    {"name": "adpool", "token_weights": "per_dimension"},
    {"name": "multi_view", "aggregator": "adpool", "share_projection": False},
    {"name": "gated", "pool": "pie_net"},
)


class AllPoolings(nn.Module):
    """All poolings over one set, side by side, so that one export is enough for them."""

    def __init__(self) -> None:
        super().__init__()
        plain = [Part(name=name) for name in AGGREGATORS if name not in ("tokens", "pie_net")]
        widths = {"input_dim": WIDTH, "embed_dim": WIDTH}
        parts = [*plain, *map(Part.model_validate, OPTIONS)]
        self.names = [part.name for part in parts]
        self.pools = nn.ModuleList(build_part(AGGREGATORS, part, part.name, widths) for part in parts)

    def forward(self, local: Tensor, mask: Tensor) -> Tensor:
        """Return the first embedding of each pooling, ``[B, P, L]``."""
        return torch.stack([pool(Features(local, mask)).vectors[:, -1] for pool in self.pools], dim=1)


@torch.no_grad()
def test_every_pooling_at_every_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = AllPoolings().eval()
    program = with_tables(copy.deepcopy(plain), LONGEST).requires_grad_(False)
    example = torch.randn(3, 7, WIDTH), position_mask(torch.tensor([7, 1, 4]), 7)
    path = tmp_path / "poolings.onnx"
    write_onnx(traced(program, example, LONGEST, "image"), ["local", "mask"], path, "image")
    session = open_program(path)
    worst = torch.zeros(len(plain.names))
    for size in range(1, LONGEST + 1):
        mask = position_mask(torch.tensor([size, (size + 1) // 2][: 1 + size % 2]), size)
        local = torch.randn(*mask.shape, WIDTH)
        ours = plain(local, mask)
        (theirs,) = session.run(None, {"local": local.numpy(), "mask": mask.numpy()})
        off = (ours - torch.from_numpy(theirs)).abs().amax(dim=(0, 2)) / ours.abs().amax(dim=(0, 2)).clamp(1)
        worst = torch.maximum(worst, off)
    found = dict(zip(plain.names, worst.tolist(), strict=True))
    assert {name: off for name, off in found.items() if not off <= 1e-4} == {}
