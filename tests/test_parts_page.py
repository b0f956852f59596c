"""The page "Use one part in your own code": every block runs by itself, and the tables are complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import openvse
from openvse import losses, testing

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "parts.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
OWN_LOOP = next(block for block in BLOCKS if "from shapes import" in block)


@pytest.mark.medium
@pytest.mark.parametrize("block", [block for block in BLOCKS if block != OWN_LOOP])
def test_a_block_runs_as_it_stands(block: str) -> None:
    scope: dict[str, object] = {}
    exec(block, scope)
    for name in re.findall(r"openvse\.(\w+)", block):
        assert name in dir(openvse)


def test_the_loop_is_the_example() -> None:
    assert (ROOT / "examples" / "own_loop.py").read_text().endswith('"""\n\n' + OWN_LOOP)


def test_the_pooled_shapes_are_as_said() -> None:
    scope: dict[str, object] = {}
    exec(next(block for block in BLOCKS if "pool(x, mask)" in block), scope)
    assert scope["pooled"].shape == (8, 512)
    views = openvse.pooling({"name": "multi_view", "num_views": 3}, dim=512)
    assert views(scope["x"], scope["mask"]).shape == (8, 3, 512)


def test_every_loss_is_in_the_table_with_its_options() -> None:
    rows = dict(re.findall(r"^\| `(\w+)\(\)` \|.*\| (`.*`) \|$", PAGE, flags=re.MULTILINE))
    made = {name: getattr(losses, name) for name in losses.__all__ if name != "Loss"}
    assert {name: set(re.findall(r"`(\w+)`", options)) for name, options in rows.items()} == {
        name: {*inspect.signature(make).parameters} for name, make in made.items()
    }


def test_every_check_is_in_the_table() -> None:
    listed = set(re.findall(r"^\| `(check_\w+)\(", PAGE, flags=re.MULTILINE))
    assert listed == {name for name in testing.__all__ if name.startswith("check")}


def test_no_line_of_code_needs_to_be_scrolled() -> None:
    assert [line for block in BLOCKS for line in block.splitlines() if len(line) > 91] == []
