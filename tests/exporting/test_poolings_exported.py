"""Every pooling as an ONNX program, in float32 and in int8, against PyTorch at every set size up to 200."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn

from openvse.aggregators import AGGREGATORS
from openvse.assembly.parts import build_part
from openvse.exporting.programs import quantize, traced, with_tables, write_onnx
from openvse.functional import position_mask
from openvse.runtime.model import open_program
from openvse.specs import Part
from openvse.types import Features

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

    def __init__(self, names: Sequence[str] = (), options: Sequence[dict[str, object]] = OPTIONS) -> None:
        super().__init__()
        plain = [Part(name=name) for name in names or AGGREGATORS if name not in ("tokens", "pie_net")]
        widths = {"input_dim": WIDTH, "embed_dim": WIDTH}
        parts = [*plain, *map(Part.model_validate, options)]
        self.names = [part.name for part in parts]
        self.pools = nn.ModuleList(build_part(AGGREGATORS, part, part.name, widths) for part in parts)

    def forward(self, local: Tensor, mask: Tensor) -> Tensor:
        """Return the first embedding of each pooling, ``[B, P, L]``."""
        return torch.stack([pool(Features(local, mask)).vectors[:, -1] for pool in self.pools], dim=1)


@torch.no_grad()
def exported(plain: AllPoolings, path: Path) -> tuple[Any, Any]:
    """Write poolings as ONNX, and return the program in float32 and in int8."""
    program = with_tables(copy.deepcopy(plain), LONGEST).requires_grad_(False)
    example = torch.randn(3, 7, WIDTH), position_mask(torch.tensor([7, 1, 4]), 7)
    write_onnx(traced(program, example, LONGEST, "image"), ["local", "mask"], path, "image")
    rounded = path.with_stem("rounded")
    shutil.copy(path, rounded)
    quantize(rounded)
    return open_program(path), open_program(rounded)


@torch.no_grad()
def compared(
    plain: AllPoolings, exact: Any, rounded: Any, sizes: Iterable[int]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return, of each pooling, the largest relative difference in float32, and the lowest cosine in int8."""
    worst, lowest = torch.zeros(len(plain.names)), torch.ones(len(plain.names))
    for size in sizes:
        mask = position_mask(torch.tensor([size, (size + 1) // 2][: 1 + size % 2]), size)
        local = torch.randn(*mask.shape, WIDTH)
        ours, inputs = plain(local, mask), {"local": local.numpy(), "mask": mask.numpy()}
        theirs, near = (torch.from_numpy(each.run(None, inputs)[0]) for each in (exact, rounded))
        off = (ours - theirs).abs().amax(dim=(0, 2)) / ours.abs().amax(dim=(0, 2)).clamp(1)
        worst = torch.maximum(worst, off)
        # A level that a short set does not have is 0 in both.
        nothing = (ours.abs().amax(dim=-1) == 0) & (near.abs().amax(dim=-1) < 1e-6)
        cosines = torch.cosine_similarity(ours, near, dim=-1).masked_fill(nothing, 1.0)
        lowest = torch.minimum(lowest, cosines.amin(dim=0))
    return (
        dict(zip(plain.names, worst.tolist(), strict=True)),
        dict(zip(plain.names, lowest.tolist(), strict=True)),
    )


@pytest.mark.slow
def test_every_pooling_at_every_size(tmp_path: Path) -> None:
    """In float32 to 1e-4; in int8 no size is worse than others, as sizes and coefficients are not rounded."""
    torch.manual_seed(0)
    plain = AllPoolings().eval()
    found, cosines = compared(plain, *exported(plain, tmp_path / "poolings.onnx"), range(1, LONGEST + 1))
    assert {name: off for name, off in found.items() if not off <= 1e-4} == {}
    assert {name: cosine for name, cosine in cosines.items() if not cosine >= 0.99} == {}


@pytest.mark.medium
def test_gpo_at_some_sizes(tmp_path: Path) -> None:
    """Were the table of coefficients rounded to int8, those of large sets, of about 1 / size, would be lost."""
    torch.manual_seed(0)
    plain = AllPoolings(["gpo", "mean"], ()).eval()
    sizes = (1, 2, 3, 20, 127, LONGEST)
    found, cosines = compared(plain, *exported(plain, tmp_path / "poolings.onnx"), sizes)
    assert max(found.values()) <= 1e-4 and min(cosines.values()) >= 0.9999


@pytest.mark.medium
@torch.no_grad()
def test_signed_weights_of_earlier_exports_do_not_overflow(tmp_path: Path) -> None:
    """Where a processor has no VNNI, products with them overflow unless ONNX Runtime is told to avoid it."""
    torch.manual_seed(0)
    plain = AllPoolings(["map_head", "lip"], ()).eval()
    exact, _ = exported(plain, path := tmp_path / "poolings.onnx")
    signed = tmp_path / "signed.onnx"
    quantize_dynamic(
        path, signed, ["MatMul", "Gemm", "Gather"], per_channel=True, weight_type=QuantType.QInt8
    )
    _, cosines = compared(plain, exact, open_program(signed), (1, 2, 3, 20))
    assert min(cosines.values()) >= 0.97
