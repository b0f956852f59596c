"""Damage and tensors that claim too much are found before anything is copied."""

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import openvse
import tiny_checkpoints as tiny
from openvse.conversion.convert import convert
from openvse.conversion.weights import MAX_LAYERS, count, dense_weights, read_checkpoint
from openvse.errors import CheckpointError
from tests.naming import names

MIB = 1 << 20


class LargestStorage(TorchDispatchMode):
    """Records the bytes of the largest storage that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.layout is torch.strided:
                self.nbytes = max(self.nbytes, leaf.untyped_storage().nbytes())
        return result


def refusal(checkpoint: Any, tmp_path: Path, *, vocabulary: Path | None = None, zipped: bool = True) -> str:
    """Convert, and return the one line that refuses it; nothing may be written."""
    path, out = tiny.save(checkpoint, tmp_path / "model.pth", zipped=zipped), tmp_path / "out"
    with pytest.raises(CheckpointError, match=r"^\S*model.pth") as error:
        convert(path, out, vocabulary=vocabulary or tiny.write_vocabulary(tmp_path / "vocab.json"))
    assert "\n" not in str(error.value)
    assert not out.exists()
    return str(error.value)


def put(checkpoint: dict[str, Any], name: str, value: torch.Tensor) -> dict[str, Any]:
    checkpoint["model"][0][name] = value
    return checkpoint


@pytest.mark.parametrize("name", ["fc.weight", "extra.weight", "gpool.linear.weight"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("elements", [1 << 29, 1 << 44])
def test_a_tensor_that_claims_more_than_its_storage_is_refused_without_copying_it(
    tmp_path: Path, name: str, dtype: torch.dtype, elements: int
) -> None:
    checkpoint = put(tiny.vse_infinity(), name, torch.zeros(1, dtype=dtype).expand(elements))
    with LargestStorage() as largest:
        message = refusal(checkpoint, tmp_path)
    assert names(message, name, f"{elements:,}", 1)
    assert largest.nbytes < MIB


@pytest.mark.parametrize("zipped", [True, False])
def test_rows_that_overlap_are_refused(tmp_path: Path, zipped: bool) -> None:
    windows = torch.randn(tiny.EMBED + tiny.REGION).as_strided((tiny.EMBED, tiny.REGION), (1, 1))
    message = refusal(put(tiny.vse_infinity(), "fc.weight", windows), tmp_path, zipped=zipped)
    assert re.search(r"'fc\.weight'.*80.*18", message)


@pytest.mark.medium
def test_transposed_and_sliced_weights_are_none_of_this(tmp_path: Path) -> None:
    image = tiny.vse_infinity()["model"][0]
    weight = image["fc.weight"]
    wide = torch.cat((weight, weight), dim=1)
    for view in (weight.t().contiguous().t(), wide[:, : tiny.REGION]):
        path = tiny.save(put(tiny.vse_infinity(), "fc.weight", view), tmp_path / "model.pth")
        out = tmp_path / f"stride{view.stride(0)}"
        model = convert(path, out, vocabulary=tiny.write_vocabulary(tmp_path / "vocab.json")).model
        assert torch.equal(model.image.encoder.projection.linear.weight, weight)


def test_weights_that_share_one_storage_are_refused(tmp_path: Path) -> None:
    checkpoint = tiny.vse_infinity(text="bert")
    text = checkpoint["model"][1]
    for name in [name for name in text if "encoder.layer.1." in name]:
        text[name] = text[name.replace("layer.1.", "layer.0.")]
    message = refusal(checkpoint, tmp_path, vocabulary=tiny.write_pieces(tmp_path / "vocab.txt"))
    assert "storage" in message


def test_more_layers_than_a_network_has_are_refused() -> None:
    weight = torch.ones(1)
    assert count({f"layer.{number}.weight": weight for number in range(MAX_LAYERS)}, "layer.") == MAX_LAYERS
    with pytest.raises(CheckpointError, match=r"1,001 layers.*'layer\.'"):
        count({f"layer.{number}.weight": weight for number in range(MAX_LAYERS + 1)}, "layer.")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.empty(8, 10, device="meta"), "'fc.weight'"),
        (torch.ones(8, 10).to_sparse(), "'fc.weight'"),
        (torch.ones(8, 0), "'fc.weight'"),
        (torch.ones(8, 10, dtype=torch.int64), r"1 .*\(8, 10\) int64 for \(8, 10\) float32"),
        (torch.ones(8, 10, dtype=torch.complex64), "1 .*complex64"),
    ],
    ids=["meta", "sparse", "empty", "whole numbers", "complex"],
)
def test_tensors_of_other_kinds_are_refused(tmp_path: Path, value: torch.Tensor, reason: str) -> None:
    assert re.search(reason, refusal(put(tiny.vse_infinity(), "fc.weight", value), tmp_path))


@pytest.mark.parametrize(("side", "name"), [(0, "fc.weight"), (0, "mlp.layers.1.weight"), (1, "rnn.weight_ih_l0")])
def test_flipped_bytes_are_found_by_the_checksum_of_their_record(tmp_path: Path, side: int, name: str) -> None:
    checkpoint = tiny.vse_infinity()
    path = tiny.save(checkpoint, tmp_path / "model.pth")
    content = bytearray(path.read_bytes())
    start = content.index(checkpoint["model"][side][name].numpy().tobytes())
    content[start : start + 64] = bytes(byte ^ 0x01 for byte in content[start : start + 64])  # still finite numbers
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"'model/data/\d+'"):
        convert(path, tmp_path / "out", vocabulary=tiny.write_vocabulary(tmp_path / "vocab.json"))
    assert not (tmp_path / "out").exists()


def repacked(path: Path, kind: int, content: Callable[[bytes], bytes] = bytes) -> Path:
    """Write an archive again, with another compression or other data."""
    out = path.with_name("repacked.pth")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(out, "w", kind) as target:
        for record in source.infolist():
            data = source.read(record)
            target.writestr(record.filename, content(data) if "/data/" in record.filename else data)
    return out


def test_an_archive_that_unpacks_to_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    path = tiny.save({"model": torch.zeros(MIB)}, tmp_path / "model.pth")
    assert read_checkpoint(repacked(path, zipfile.ZIP_STORED))["model"].shape == (MIB,)
    with pytest.raises(CheckpointError, match=r"repacked\.pth.* [\d,]+ .* 4,19"):
        read_checkpoint(repacked(path, zipfile.ZIP_DEFLATED))


def test_a_record_shorter_than_its_tensor_is_refused(tmp_path: Path) -> None:
    path = tiny.save({"model": torch.ones(1000)}, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match="repacked.pth"):
        read_checkpoint(repacked(path, zipfile.ZIP_STORED, lambda data: data[:16]))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("side", "name", "value"),
    [
        (0, "fc.weight", float("nan")),
        (0, "mlp.bns.0.running_var", float("inf")),
        (1, "rnn.bias_hh_l0", -float("inf")),
        (1, "embed.weight", float("nan")),
    ],
)
def test_a_weight_that_is_not_finite_is_refused(
    tmp_path: Path, zipped: bool, side: int, name: str, value: float
) -> None:
    checkpoint = tiny.vse_infinity()
    checkpoint["model"][side][name].view(-1)[-1] = value
    message = refusal(checkpoint, tmp_path, zipped=zipped)
    assert names(message, 1) and "NaN" in message


@pytest.mark.medium
def test_all_nan_is_refused(tmp_path: Path) -> None:
    checkpoint = tiny.pvse()
    checkpoint["model"] = {
        name: torch.full_like(weight, float("nan")) if weight.is_floating_point() else weight
        for name, weight in checkpoint["model"].items()
    }
    assert "NaN" in refusal(checkpoint, tmp_path)


def test_a_number_too_large_for_single_precision_is_refused(tmp_path: Path) -> None:
    weight = torch.full((tiny.EMBED, tiny.REGION), 1e300, dtype=torch.float64)
    assert names(refusal(put(tiny.vse_infinity(), "fc.weight", weight), tmp_path), 80, 80)


def test_what_has_no_effect_may_hold_anything(tmp_path: Path) -> None:
    checkpoint = put(tiny.vse_infinity(), "mlp.bns.1.weight", torch.full((8,), float("nan")))
    path = tiny.save(checkpoint, tmp_path / "model.pth")
    convert(path, tmp_path / "out", vocabulary=tiny.write_vocabulary(tmp_path / "vocab.json"))
    assert openvse.load(tmp_path / "out").encode_text(["a dog"]).vectors.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_precision_becomes_single(tmp_path: Path, dtype: torch.dtype) -> None:
    checkpoint = tiny.vse_infinity()
    for side in checkpoint["model"]:
        side.update({n: w.to(dtype) for n, w in side.items() if w.is_floating_point()})
    path = tiny.save(checkpoint, tmp_path / "model.pth")
    model = convert(path, tmp_path / "out", vocabulary=tiny.write_vocabulary(tmp_path / "vocab.json")).model
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    expected = checkpoint["model"][0]["fc.weight"].float()
    assert torch.equal(model.image.encoder.projection.linear.weight, expected)


def test_weights_are_found_without_a_copy() -> None:
    state = {"module.fc.weight": torch.ones(2, dtype=torch.float16), "epoch": 3}
    found = dense_weights(state)
    assert found.keys() == {"fc.weight"}
    assert found["fc.weight"] is state["module.fc.weight"]


def test_a_tree_that_names_one_part_many_times_is_read_in_its_own_size(tmp_path: Path) -> None:
    part: list[Any] = ["x"]
    for _ in range(60):  # 2^60 leaves for whoever walks it without looking
        part = [part, part]
    read = read_checkpoint(tiny.save({"opt": part, "model": torch.ones(1)}, tmp_path / "model.pth"))
    assert read["opt"][0] is read["opt"][1]
