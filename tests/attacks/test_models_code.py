"""Nothing that lies beside a model runs, whatever its configuration says and whoever says yes."""

from __future__ import annotations

import builtins
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from encoders.conftest import bert_checkpoint, two_tower_checkpoint, vision_checkpoint  # noqa: F401 - fixtures
from openvse.backbones import TransformersVision
from openvse.conversion.convert import convert
from openvse.encoders import TransformersText
from openvse.errors import OpenVSEError

_CLASSES = (
    *("AutoConfig", "AutoModel", "AutoModelForObjectDetection", "AutoImageProcessor", "AutoProcessor"),
    *("AutoFeatureExtractor",),
)
_FILES = ("config.json", "preprocessor_config.json", "processor_config.json", "tokenizer_config.json")


@pytest.fixture
def yes(tmp_path, monkeypatch) -> Path:
    """Answer every question with yes, and return the file that the code of a stranger would write."""
    from transformers import dynamic_module_utils

    for module in (dynamic_module_utils, sys.modules.get("transformers.utils.hub")):
        if hasattr(module, "HF_MODULES_CACHE"):
            monkeypatch.setattr(module, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 100))
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    return tmp_path / "it_ran"


def planted(source: str, folder: Path, mark: Path, *, kind: str | None) -> str:
    """Copy a checkpoint and name a file of code in all of its configurations; ``kind`` replaces its type."""
    shutil.copytree(source, folder)
    code = f"open({str(mark)!r}, 'w').write('ran')\n"
    code += "from transformers import BertConfig as C, BertModel as M, BertTokenizer as T\n"
    (folder / "evil.py").write_text(code)
    named = dict.fromkeys(_CLASSES, "evil.M") | {"AutoConfig": "evil.C", "AutoTokenizer": ["evil.T", "evil.T"]}
    for name in _FILES:
        path = folder / name
        content = json.loads(path.read_text()) if path.is_file() else {}
        content["auto_map"] = named
        if kind is not None and name == "config.json":
            content["model_type"] = kind
        if kind is not None and name != "config.json":
            content |= {"image_processor_type": "EvilProcessor", "tokenizer_class": "EvilTokenizer"}
        if path.is_file():
            path.write_text(json.dumps(content))
    return str(folder)


def _saved_vision(source: str) -> object:
    (Path(source) / "fingerprint.txt").write_text("vit@0123\n")
    return TransformersVision(model="unread", assets=Path(source))


def _saved_text(source: str) -> object:
    return TransformersText(model="unread", assets=Path(source), embed_dim=8)


def _converted(source: str) -> object:
    return convert(source, Path(source).parent / "converted")


CASES: dict[str, tuple[str, str, Callable[[str], object]]] = {
    "vision": ("vision_checkpoint", "vit", lambda source: TransformersVision(model=source)),
    "saved_vision": ("vision_checkpoint", "vit", _saved_vision),
    "tower": ("two_tower_checkpoint", "clip", lambda source: TransformersVision(model=source)),
    "text": ("bert_checkpoint", "", lambda source: TransformersText(model=source, embed_dim=8)),
    "saved_text": ("bert_checkpoint", "", _saved_text),
    "dual_encoder": ("two_tower_checkpoint", "clip", _converted),
}


@pytest.mark.medium
@pytest.mark.parametrize("kind", [None, "unheard_of"])
@pytest.mark.parametrize("case", CASES)
def test_code_beside_a_model_never_runs(case, kind, yes, tmp_path, request):
    fixture, family, load = CASES[case]
    made = request.getfixturevalue(fixture)
    source = planted(made(family) if family else made, tmp_path / "model", yes, kind=kind)
    try:
        load(source)
    except OpenVSEError:
        assert kind is not None, "a known kind of model loads without the code"
    else:
        assert kind is None, "what only the code can build is refused"
    assert not yes.exists()
