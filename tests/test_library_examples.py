"""The Python of "The library by example", "Add a part" and the pages on searching and asking runs as it stands."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import openvse
from openvse.aggregators import AGGREGATORS
from openvse.encoders import TEXT_ENCODERS
from openvse.features import FEATURE_FILES
from openvse.objectives import CRITERIA, MINERS, TERMS
from openvse.similarities import SIMILARITIES
from openvse.stores import STORES
from tests.cli.album import answering_recipe, write_album, write_pictured_questions
from tests.vqa.tiny_wordnet import write_wordnet

DOCS = Path(__file__).parent.parent / "docs"
ADDED_TO = (AGGREGATORS, CRITERIA, FEATURE_FILES, MINERS, SIMILARITIES, STORES, TERMS, TEXT_ENCODERS)

INDEXED = {"engines.md": "photos", "searching.md": ["photos", "usb"]}
"""Pages that update an index of these folders."""

SILENT = (*INDEXED, "asking.md", "get_started.md")
"""Pages that use the models of the library by example, and do not say what they print."""


def shown(page: str, language: str) -> list[str]:
    """Return the blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return a module for the code of a page, in the folder that the pages describe. Registrations are forgotten."""
    for folder, count in (("photos", 12), ("usb", 4)):
        write_album(tmp_path / folder, count)
    for name in ("kitchen.jpg", "photo.jpg"):
        shutil.copy(tmp_path / "photos" / "00.png", tmp_path / name)
    write_pictured_questions(tmp_path / "questions")
    (tmp_path / "small.yaml").write_text(shown("reference/examples.md", "yaml")[0])
    (tmp_path / "answers.yaml").write_text(yaml.safe_dump(answering_recipe(Path("questions"))))
    monkeypatch.setenv("WNSEARCHDIR", str(write_wordnet(tmp_path / "wordnet")))
    monkeypatch.chdir(tmp_path)
    for registry in ADDED_TO:
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    module = ModuleType("soft_max")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # the first file of the page on parts
    return module


@pytest.mark.medium
def test_every_block_runs_and_prints_what_it_says(
    scope: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for page in ("reference/examples.md", *SILENT, "add_a_part.md"):
        if page in INDEXED:  # without a text encoder, which takes seconds to write
            openvse.index("runs/mine", INDEXED[page], settings=scope.settings, overwrite=True)
        for block in shown(page, "python"):
            exec(block.replace("/media/usb", "usb"), vars(scope))
            printed = capsys.readouterr().out.splitlines()
            if page not in SILENT:
                said = re.findall(r"^ *print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
                assert printed == said, block
            assert max(map(len, block.splitlines())) <= 91, block
    for name, test in inspect.getmembers(scope, inspect.isfunction):
        if name.startswith("test_"):
            test(*[tmp_path / "store"][: len(inspect.signature(test).parameters)])
