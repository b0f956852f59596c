"""What the page on trust says is held by tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_that_the_page_names_is_there() -> None:
    page = (HERE.parent.parent / "docs" / "trust.md").read_text()
    texts = {path.name: path.read_text() for path in HERE.glob("test_*.py")}
    named = re.findall(r"`(?:(test_\w+\.py)::)?(test_\w+)`", page)
    assert len(named) > 30
    for file, name in named:
        where = texts[file] if file else "\n".join(texts.values())
        assert f"def {name}(" in where, (file, name)
