"""Every Python block of README and documentation runs as it stands, the blocks of a page one after the other."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

import openvse
from openvse.aggregators import AGGREGATORS
from openvse.backbones import BACKBONES
from openvse.datasets import DATASETS
from openvse.encoders import TEXT_ENCODERS
from openvse.evaluation import METRICS
from openvse.features import FEATURE_FILES
from openvse.objectives import CRITERIA, MINERS, TERMS
from openvse.runtime import OnnxModel
from openvse.search import updating
from openvse.similarities import SIMILARITIES
from openvse.stores import STORES
from tests.cli.album import answering_recipe, write_album, write_pictured_questions
from tests.papers.datasets.test_daquar import all_pairs
from tests.papers.vqa.tiny_wordnet import write_wordnet
from tests.runtime.colour_export import write_export

ROOT = Path(__file__).parents[2]
TEXTS = {
    str(path.relative_to(ROOT)): text
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    if re.search(r"^ *(```|~~~) *py", text := path.read_text(), re.MULTILINE)
}
TUTORIAL = "docs/tutorials/attention_and_pooling.md"
TEXTS[TUTORIAL] = re.sub(r"epochs: \d\d", "epochs: 2", TEXTS[TUTORIAL])  # which alters nothing that it prints
LONG = {"docs/parts.md", *(page for page in TEXTS if "tutorials" in page)}
"""Pages that train for more than a few epochs."""

REGISTRIES = (
    *(AGGREGATORS, BACKBONES, CRITERIA, DATASETS, FEATURE_FILES, METRICS, MINERS),
    *(SIMILARITIES, STORES, TERMS, TEXT_ENCODERS),
)


def answers() -> None:
    write_pictured_questions(Path("questions"))
    Path("answers.yaml").write_text(yaml.safe_dump(answering_recipe(Path("questions"))))
    openvse.train("answers.yaml", out="runs/answers")


def library() -> None:
    """Write what the page lists. It trains its models itself."""
    answers()
    for folder in ("runs", "photos"):
        shutil.rmtree(folder)
    write_album(Path("photos"), 12)
    (recipe,) = re.findall(r"```yaml\n(.*?)```", TEXTS["docs/reference/examples.md"], re.DOTALL)
    Path("small.yaml").write_text(recipe)


def write_bert(folder: Path, width: int) -> Path:
    """Write a small BERT with random weights, and its tokenizer."""
    from transformers import BertConfig, BertModel, BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")),
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    BertModel(config).eval().save_pretrained(folder)
    BertTokenizer(str(vocabulary)).save_pretrained(folder)
    return folder


def exported() -> None:
    """Write an export of another model, since the export of a model takes long, and its index."""
    model = OnnxModel(write_export(Path("exported")))
    openvse.index(model, "photos", "index")
    write_bert(Path("sentence-transformers/all-MiniLM-L6-v2"), width=384)


def indexed() -> None:
    openvse.index("runs/mine", "photos", "index")


HAS: dict[str, Callable[[], Any]] = {
    "docs/asking.md": answers,
    "docs/engines.md": indexed,
    "docs/export.md": exported,
    "docs/get_started.md": lambda: openvse.index("runs/mine", "photos", "runs/mine/index"),
    "docs/reference/answers.md": lambda: all_pairs(Path("path/to/daquar")),
    "docs/reference/examples.md": library,
    "docs/searching.md": indexed,
    "docs/teaching.md": lambda: openvse.index("runs/mine", "photos", "runs/mine/index"),
}
"""What a page needs beside two folders of images, an image and a trained model."""

MODULES = {"docs/add_a_part.md": "soft_max"}
"""Pages whose first block is a file that the others import."""


@pytest.fixture
def enter(trained: Path, tmp_path: Path, monkeypatch) -> Iterator[Callable[[str], ModuleType]]:
    """Return what goes to a folder for the code of a page and returns its module. Registrations are forgotten."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("WNSEARCHDIR", str(write_wordnet(tmp_path / "wordnet")))
    monkeypatch.syspath_prepend(ROOT / "examples")
    # An export takes seconds, and cannot be made while shapes are checked: an index has no towers beside it here.
    monkeypatch.setattr(updating, "_write_towers", lambda *_: None)
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))

    def start(page: str) -> ModuleType:
        (tmp_path / "page").mkdir()
        monkeypatch.chdir(tmp_path / "page")
        shutil.copytree(trained / "album", "photos")
        shutil.copytree(trained / "run", "runs/mine")
        write_album(Path("scans"), 4)
        for name in ("kitchen.jpg", "photo.jpg", "photos/0001.jpg", "photos/0002.jpg"):
            shutil.copy("photos/00.png", name)
        HAS.get(page, lambda: None)()
        module = ModuleType(MODULES.get(page, "page"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    yield start
    torch.set_default_dtype(torch.float32)
    sys.modules.pop("shapes", None)


def run_page(text: str, module: ModuleType, capsys) -> None:
    """Run the blocks of a page in turn. They print what it shows, and results have the shape that it says."""
    blocks = re.findall(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == len(re.findall(r"^ *(?:```|~~~) *py", text, re.MULTILINE))
    capsys.readouterr()
    for block, below in blocks:
        exec(block, vars(module))
        printed = capsys.readouterr().out.splitlines()
        said = below.splitlines() or re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
        assert said in ([], printed), block
        for name, shape in re.findall(r"^(\w+) = .*  # (?:bool )?(\[[\d, ]+\])$", block, re.MULTILINE):
            assert [*vars(module)[name].shape] == json.loads(shape), block
    for name, test in inspect.getmembers(module, inspect.isfunction):
        if name.startswith("test_"):
            test(*[Path("store")][: len(inspect.signature(test).parameters)])


@pytest.mark.medium
@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.slow] * (page in LONG)) for page in TEXTS])
def test_the_python_of_a_page_runs(page: str, enter: Callable[[str], ModuleType], capsys) -> None:
    module = enter(page)
    run_page(TEXTS[page], module, capsys)
    if page == "docs/parts.md":  # whose loop has learned something
        assert "circle" in module.engine.search("a large red circle", top_k=1)[0].id


WRONG = (
    "nowhere",
    "print(1)  # 2",
    "x = torch.ones(2)  # [3]",
    "def test_it():\n    assert 0",
    "print(1)\n```\n\n```text\n2",
)


@pytest.mark.parametrize("block", WRONG)
def test_a_block_that_is_wrong_fails(block: str, capsys) -> None:
    right = "```python\nimport torch\n```\n"
    run_page(right, ModuleType("page"), capsys)
    with pytest.raises((AssertionError, NameError)):
        run_page(f"{right}```python\n{block}\n```\n", ModuleType("page"), capsys)


def test_no_line_of_code_on_the_site_needs_to_be_scrolled() -> None:
    site = "".join(text for page, text in TEXTS.items() if page.startswith("docs/"))
    code = "".join(re.findall(r"^```python\n(.*?)^```$", site, re.DOTALL | re.MULTILINE))
    assert [line for line in code.splitlines() if len(line) > 91] == []
