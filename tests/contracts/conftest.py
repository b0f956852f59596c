"""Tiny stand-ins for the models of the hub that recipes name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from encoders.conftest import bert_checkpoint, vision_checkpoint  # noqa: F401 - fixtures
from openvse.specs import read_recipe


@dataclass(frozen=True)
class Checkpoints:
    """Folders in the hub's format: a BERT, and a vision model for each family."""

    text: str
    vision: Callable[[str], str]


def needs_no_start(name: str) -> bool:
    """Return whether a shipped recipe names its model, and takes it from no other one."""
    tree = read_recipe(name)
    return "text" in tree and "start" not in tree


@pytest.fixture
def checkpoints(bert_checkpoint: str, vision_checkpoint: Callable[[str], str]) -> Checkpoints:  # noqa: F811
    return Checkpoints(bert_checkpoint, vision_checkpoint)
