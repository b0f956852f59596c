"""What a model is made of, as data: all that its folder says about how to build it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

SpecT = TypeVar("SpecT", bound="ModelSpec")


class Strict(BaseModel):
    """A section of a recipe: unknown keys are refused, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(BaseModel):
    """A part by name; every other key is an argument of its constructor. ``gpo`` is short for ``{name: gpo}``."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return dict(self.model_extra or {})


class TowerSpec(Strict):
    """One side of the model."""

    encoder: Part
    aggregator: Part


class ModelSpec(Strict):
    """What every model's spec says; a task's own spec adds to it, and its recipe adds how to train.

    Attributes:
        embed_dim: D, the joint width.
        image: the side of the images; None for a model that reads text only.
        text: the side of the sentences.
    """

    embed_dim: int = Field(1024, ge=1)
    image: TowerSpec | None
    text: TowerSpec

    @classmethod
    def of(cls: type[SpecT], tree: Mapping[str, Any]) -> SpecT:
        """Take a spec out of a tree that says more, such as a recipe; the rest is not looked at.

        Raises:
            pydantic.ValidationError: what concerns the model is not right.
        """
        return cls.model_validate({key: tree[key] for key in cls.model_fields if key in tree})

    def portable(self: SpecT) -> SpecT:
        """Return the spec without the folders of this machine: of an absolute path, the last name stays.

        What such a path names (a checkpoint, word vectors) is read when a model is made, and never again: a model's
        folder holds its own copy.
        """
        return type(self).model_validate(without_folders(self.model_dump(mode="json")))

    def identity(self) -> dict[str, Any]:
        """Return what tells this model from others with the same weights; the fingerprint covers it."""
        return self.model_dump(mode="json")


class TwoTowerSpec(ModelSpec):
    """Two towers and the similarity between what they yield."""

    image: TowerSpec
    similarity: Part = Part(name="set_max")


def without_folders(value: Any) -> Any:
    """Return plain values in which an absolute path is cut to its last name."""
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_folders(each) for each in value]
    if isinstance(value, str):
        for kind in (PurePosixPath, PureWindowsPath):
            if kind(value).is_absolute() or value.startswith("~"):
                return kind(value).name
    return value
