"""Every pooling as an ONNX program, in float32 and in int8, against PyTorch at set sizes up to 200."""

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
from openvse.exporting.write import quantize, traced, with_tables, write_onnx
from openvse.functional import position_mask
from openvse.runtime.model import open_program
from openvse.specs.model import Part
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


APART = ("tokens", "pie_net", "slot_attention")
"""``tokens`` and ``pie_net`` are no poolings; the blocks of ``slot_attention`` share weights, which the quantizer of
earlier exports made twice."""


class AllPoolings(nn.Module):
    """Poolings over one set, side by side, so that one export is enough: all of them, or those that are named."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        every = (*(name for name in AGGREGATORS if name not in APART), *OPTIONS)
        widths = {"input_dim": WIDTH, "embed_dim": WIDTH}
        parts = [Part.model_validate(each) for each in names or every]
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
    plain: AllPoolings, exact: Any, rounded: Any, batches: Iterable[Sequence[int]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return, of each pooling, the largest relative difference in float32, and the lowest cosine in int8.

    ``batches`` are the sizes of the sets of each batch.
    """
    worst, lowest = torch.zeros(len(plain.names)), torch.ones(len(plain.names))
    for sizes in batches:
        mask = position_mask(torch.tensor(sizes), max(sizes))
        local = torch.randn(*mask.shape, WIDTH)
        ours, inputs = plain(local, mask), {"local": local.numpy(), "mask": mask.numpy()}
        theirs, near = (torch.from_numpy(each.run(None, inputs)[0]) for each in (exact, rounded))
        off = (ours - theirs).abs().amax(dim=(0, 2)) / ours.abs().amax(dim=(0, 2)).clamp(1)
        worst = torch.maximum(worst, off)
        # A level that a short set does not have is 0 in both.
        nothing = (ours.abs().amax(dim=-1) == 0) & (near.abs().amax(dim=-1) < 1e-6)
        cosines = torch.cosine_similarity(ours, near, dim=-1).masked_fill(nothing, 1.0)
        lowest = torch.minimum(lowest, cosines.amin(dim=0))
    return (dict(zip(plain.names, worst.tolist(), strict=True)), dict(zip(plain.names, lowest.tolist(), strict=True)))


Poolings = tuple[AllPoolings, Path, Any, Any]


@pytest.fixture(scope="module")
def poolings(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> Poolings:
    """All poolings, their program on disk, and the program in float32 and in int8."""
    torch.manual_seed(0)
    plain, path = AllPoolings().eval(), tmp_path_factory.mktemp("poolings") / "poolings.onnx"
    return plain, path, *exported(plain, path)


@pytest.mark.slow
def test_every_pooling_at_many_sizes(poolings: Poolings) -> None:
    """In float32 to 1e-4; in int8 no size is worse than others, as sizes and coefficients are not rounded.

    Were the table of GPO's coefficients rounded to int8, those of large sets, of about 1 / size, would be lost.
    """
    plain, _, exact, rounded = poolings
    batches = [range(1, 9), range(9, 17), range(17, 25), [1], [40, 36, 33], [99, 100, 128], [LONGEST, 199]]
    found, cosines = compared(plain, exact, rounded, batches)
    assert {name: off for name, off in found.items() if not off <= 1e-4} == {}
    lowest = {name: 0.9999 if name in ("gpo", "mean") else 0.99 for name in cosines}
    assert {name: cosine for name, cosine in cosines.items() if not cosine >= lowest[name]} == {}


@pytest.mark.slow
def test_shared_blocks_are_exported_for_any_batch(tmp_path: Path) -> None:
    plain = AllPoolings("slot_attention").eval()
    found, cosines = compared(plain, *exported(plain, tmp_path / "slots.onnx"), [[1], [3, 8], [5, 1, 2, 20]])
    assert found["slot_attention"] <= 1e-4 and cosines["slot_attention"] >= 0.99


@pytest.mark.slow
@torch.no_grad()
def test_signed_weights_of_earlier_exports_do_not_overflow(poolings: Poolings) -> None:
    """Where a processor has no VNNI, products with them overflow unless ONNX Runtime is told to avoid it."""
    plain, path, exact, _ = poolings
    signed = path.with_stem("signed")
    quantize_dynamic(path, signed, ["MatMul", "Gemm", "Gather"], per_channel=True, weight_type=QuantType.QInt8)
    _, cosines = compared(plain, exact, open_program(signed), [[1], [2], [3], [20]])
    assert min(cosines["map_head"], cosines["lip"]) >= 0.97
