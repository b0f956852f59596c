"""The page "Use one part in your own code": the tables are complete, and the loop is the example."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from openvse import losses, testing

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "parts.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
OWN_LOOP = next(block for block in BLOCKS if "from shapes import" in block)


def test_the_loop_is_the_example() -> None:
    assert (ROOT / "examples" / "own_loop.py").read_text().endswith('"""\n\n' + OWN_LOOP)


def test_every_loss_is_in_the_table_with_its_options() -> None:
    rows = dict(re.findall(r"^\| `(\w+)\(\)` \|.*\| (`.*`) \|$", PAGE, flags=re.MULTILINE))
    made = {name: getattr(losses, name) for name in losses.__all__ if name != "Loss"}
    assert {name: set(re.findall(r"`(\w+)`", options)) for name, options in rows.items()} == {
        name: {*inspect.signature(make).parameters} for name, make in made.items()
    }


def test_every_check_is_in_the_table() -> None:
    listed = set(re.findall(r"^\| `(check_\w+)\(", PAGE, flags=re.MULTILINE))
    assert listed == {name for name in testing.__all__ if name.startswith("check")}
