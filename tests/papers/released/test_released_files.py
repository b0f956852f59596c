"""Files of others are read, never run."""

import os
import pickle
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_checkpoints as tiny
from openvse.conversion.weights import read_checkpoint
from openvse.errors import CheckpointError
from openvse_papers.released import read_vocabulary
from tests.naming import names, refusal


class Attack:
    """Runs a command when it is unpickled; here it would write a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_options_and_numbers_become_plain_values(tmp_path: Path, zipped: bool) -> None:
    content = {
        "opt": Namespace(margin=0.2, nested=Namespace(deep=[1, Namespace(x=None)]), device=torch.device("cpu")),
        "best_rsum": np.float64(513.5),
        "best": np.float32(0.5),
        "epoch": np.int64(3),
        "done": np.bool_(True),
        "model": [OrderedDict(a=torch.ones(2)), {"b": torch.zeros(1, dtype=torch.float16)}],
    }
    read = read_checkpoint(tiny.save(content, tmp_path / "file.pth", zipped=zipped))
    assert read["opt"]["margin"] == 0.2 and read["opt"]["nested"] == {"deep": [1, {"x": None}]}
    assert (read["best_rsum"], read["best"], read["epoch"], read["done"]) == (513.5, 0.5, 3, True)
    assert [type(read[key]) for key in ("best_rsum", "best", "epoch", "done")] == [float, float, int, bool]
    assert torch.equal(read["model"][0]["a"], torch.ones(2))


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_that_were_saved_on_a_gpu_come_to_the_cpu(tmp_path: Path, monkeypatch, zipped: bool) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        path = tiny.save({"model": torch.arange(3.0)}, tmp_path / "gpu.pth", zipped=zipped)
    assert b"cuda:0" in path.read_bytes()
    assert read_checkpoint(path)["model"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("where", ["opt", "weights"])
def test_a_checkpoint_that_runs_a_command_is_refused(tmp_path: Path, zipped: bool, where: str) -> None:
    checkpoint, trace = tiny.vse_infinity(), tmp_path / "trace"
    if where == "opt":
        checkpoint["opt"] = Attack(trace)
    else:
        checkpoint["model"][0]["fc.weight"] = Attack(trace)
    path = tiny.save(checkpoint, tmp_path / "bad.pth", zipped=zipped)
    assert names(refusal(CheckpointError, read_checkpoint, path), "bad.pth")
    assert not trace.exists()


def test_a_bare_pickle_that_runs_a_command_is_refused(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "bad.pth"
    path.write_bytes(pickle.dumps(Attack(trace)))
    refusal(CheckpointError, read_checkpoint, path)
    assert not trace.exists()


def test_objects_of_other_classes_are_refused_by_name(tmp_path: Path) -> None:
    path = tiny.save({"model": torch.nn.Linear(1, 1)}, tmp_path / "whole.pth")
    assert names(refusal(CheckpointError, read_checkpoint, path), "whole.pth", "Linear")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_named(tmp_path: Path, zipped: bool, share: float) -> None:
    path = tiny.save(tiny.vse_infinity(), tmp_path / "cut.pth", zipped=zipped)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert names(refusal(CheckpointError, read_checkpoint, path), "cut.pth")


@pytest.mark.parametrize("content", [b"not a checkpoint", b"<html>quota exceeded</html>", b"49 words\n"])
def test_what_is_no_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "page.pth"
    path.write_bytes(content)
    assert names(refusal(CheckpointError, read_checkpoint, path), "page.pth", "PyTorch")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert names(refusal(CheckpointError, read_checkpoint, tmp_path / "gone.pth"), "gone.pth")


@pytest.mark.parametrize("name", ["vocab.json", "vocab.pkl"])
def test_vocabularies_are_read_in_the_order_of_their_ids(tmp_path: Path, name: str) -> None:
    path = tiny.write_vocabulary(tmp_path / name)
    assert read_vocabulary(path) == list(tiny.WORDS)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_vocabulary_that_runs_a_command_is_refused(tmp_path: Path, protocol: int) -> None:
    trace, path = tmp_path / "trace", tmp_path / "vocab.pkl"
    path.write_bytes(pickle.dumps({"word2idx": {"a": Attack(trace)}}, protocol))
    assert names(refusal(CheckpointError, read_vocabulary, path), "vocab.pkl", f"{os.name}.system")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("v.json", b"{"),
        ("v.json", b"[1, 2]"),
        ("v.json", b"{}"),
        ("v.json", b'{"word2idx": {}}'),
        ("v.json", b'{"word2idx": {"a": 0, "b": 2}}'),
        ("v.json", b'{"word2idx": {"a": 0, "b": "x"}}'),
        ("v.json", b'{"word2idx": 3}'),
        ("v.pkl", b""),
        ("v.pkl", b"\x80\x04"),
        ("v.pkl", pickle.dumps(["a", "b"])),
    ],
)
def test_what_is_no_vocabulary_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert names(refusal(CheckpointError, read_vocabulary, path), name)


def test_a_missing_vocabulary_is_named(tmp_path: Path) -> None:
    assert names(refusal(CheckpointError, read_vocabulary, tmp_path / "gone.json"), "gone.json")
