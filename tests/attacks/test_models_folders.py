"""Folders in the format of the hub, with whatever a stranger may have put there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from encoders.conftest import bert_checkpoint, vision_checkpoint  # noqa: F401 - fixtures
from openvse.backbones import TransformersVision
from openvse.encoders import TransformersText
from openvse.errors import ModelError


class _Runs:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> object:
        return open, (str(self.mark), "w")


def _with(name: str, **values: object) -> Callable[[Path, Path], None]:
    """Return what changes some values of a file of JSON."""

    def change(folder: Path, _: Path) -> None:
        tree = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(tree | values))

    return change


def _write(name: str, content: str) -> Callable[[Path, Path], None]:
    def change(folder: Path, _: Path) -> None:
        (folder / name).write_text(content)

    return change


def _pickled(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": _Runs(mark)}, folder / "pytorch_model.bin")


def _outside(folder: Path, mark: Path) -> None:
    """An index of the parts of the weights names a file of another folder."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({"weight": _Runs(mark)}, folder.parent / "elsewhere.bin")
    names = dict.fromkeys(weights, "../elsewhere.bin")
    index = {"metadata": {}, "weight_map": names}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def _link(folder: Path, _: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/etc/passwd")


DEEP = "[" * 100_000
ADAPTER = {"base_model_name_or_path": "../../elsewhere", "peft_type": "LORA"}
BAD: dict[str, Callable[[Path, Path], None]] = {
    "a pickle": _pickled,
    "weights of another folder": _outside,
    "a deep configuration": _write("config.json", DEEP),
    "a list": _write("config.json", "[]"),
    "a width in words": _with("config.json", hidden_size="wide"),
    "a negative width": _with("config.json", hidden_size=-4),
    "a vast width": _with("config.json", hidden_size=1 << 40, intermediate_size=1 << 40),
    "weights that are none": _write("model.safetensors", "x" * 100),
    "a header without end": _write("model.safetensors", "\x7f" * 8),
    "a link": _link,
    "an adapter": _write("adapter_config.json", json.dumps(ADAPTER)),
}
BAD_TEXT = {
    "a tokenizer of nothing": _write("tokenizer.json", "{}"),
    "a deep tokenizer": _write("tokenizer.json", '{"a":' * 100_000),
    "deep settings of a tokenizer": _write("tokenizer_config.json", DEEP),
}
BAD_VISION = {
    "a deep preprocessing": _write("preprocessor_config.json", DEEP),
    "a size in words": _with("preprocessor_config.json", size="x"),
}


@pytest.mark.medium
def test_a_folder_that_breaks_the_library_is_one_line_and_runs_nothing(
    bert_checkpoint: str,  # noqa: F811 - the fixture
    vision_checkpoint: Callable[[str], str],  # noqa: F811
    tmp_path: Path,
) -> None:
    mark, texts, images = tmp_path / "it_ran", BAD | BAD_TEXT, BAD | BAD_VISION
    loaders = {
        "text": (bert_checkpoint, lambda place: TransformersText(model=place, embed_dim=8), texts),
        "vision": (vision_checkpoint("vit"), lambda place: TransformersVision(model=place), images),
    }
    for kind, (source, load, cases) in loaders.items():
        for name, spoil in cases.items():
            folder = tmp_path / f"{kind} {name}"
            shutil.copytree(source, folder)
            spoil(folder, mark)
            with pytest.raises(ModelError, match=re.escape(str(folder))) as raised:
                load(str(folder))
            assert "\n" not in str(raised.value) and "root:" not in str(raised.value), folder.name
    assert not mark.exists()
