"""Checkpoints for the tests of backbones: those of the encoders."""

from encoders.conftest import (  # noqa: F401 - fixtures
    bert_checkpoint,
    fake_timm,
    two_tower_checkpoint,
    vision_checkpoint,
)
