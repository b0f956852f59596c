"""The parts of a model, as data: everything in its folder that is needed to build it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

LARGEST_EMBED_DIM = 65536
"""No published model is a tenth as wide, but a typing error is."""

SpecT = TypeVar("SpecT", bound="ModelSpec")


class Strict(BaseModel):
    """A section of a recipe, which refuses unknown keys and cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class Part(BaseModel):
    """A part by its name. All other keys are arguments of its constructor. ``gpo`` is short for ``{name: gpo}``."""

    model_config = ConfigDict(extra="allow", frozen=True, coerce_numbers_to_str=True)
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
    """One side of the model.

    Attributes:
        encoder: the part that turns images or sentences into local features.
        aggregator: the part that pools local features into embeddings.
    """

    encoder: Part
    aggregator: Part


class ModelSpec(Strict):
    """The spec of any model. The spec of a task extends it, and the recipe of a task adds the training.

    Attributes:
        embed_dim: D, the joint width.
        image: the side of the images. None for a model that reads only text.
        text: the side of the sentences.
    """

    embed_dim: int = Field(1024, ge=1, le=LARGEST_EMBED_DIM)
    image: TowerSpec | None
    text: TowerSpec

    @classmethod
    def of(cls: type[SpecT], tree: Mapping[str, Any]) -> SpecT:
        """Extract a spec from a tree with further keys, such as a recipe. The rest is ignored.

        Raises:
            pydantic.ValidationError: the part that describes the model is invalid.
        """
        return cls.model_validate({key: tree[key] for key in cls.model_fields if key in tree})

    def portable(self: SpecT) -> SpecT:
        """Return the spec without the folders of this machine: only the last name of an absolute path is kept.

        The file of such a path (a checkpoint, word vectors) is read only for a new model. The folder of the model holds
        its own copy.
        """
        return type(self).model_validate(without_folders(self.model_dump(mode="json")))

    def identity(self) -> dict[str, Any]:
        """Return the values that distinguish models with the same weights. The fingerprint covers them."""
        return self.model_dump(mode="json")


class TwoTowerSpec(ModelSpec):
    """Two towers and the similarity between their embeddings.

    Attributes:
        similarity: the part that scores an image and a sentence.
    """

    image: TowerSpec
    similarity: Part = Part(name="set_max")


def section(tree: object, *keys: str) -> Mapping[str, Any]:
    """Return a mapping inside mappings that nothing has checked, such as provenance. It is empty if there is none."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, Mapping) else {}


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
