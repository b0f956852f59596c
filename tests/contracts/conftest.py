"""Tiny stand-ins for the models of the hub that recipes name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from encoders.conftest import bert_checkpoint, vision_checkpoint  # noqa: F401 - fixtures


@dataclass(frozen=True)
class Checkpoints:
    """Folders in the hub's format: a BERT, and a vision model for each family."""

    text: str
    vision: Callable[[str], str]


@pytest.fixture
def checkpoints(bert_checkpoint: str, vision_checkpoint: Callable[[str], str]) -> Checkpoints:  # noqa: F811
    return Checkpoints(bert_checkpoint, vision_checkpoint)
