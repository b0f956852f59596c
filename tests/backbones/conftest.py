"""Checkpoints for the tests of backbones: those of the encoders."""

from encoders.conftest import bert_checkpoint, two_tower_checkpoint, vision_checkpoint  # noqa: F401 - fixtures
