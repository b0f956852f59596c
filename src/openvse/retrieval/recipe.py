"""The schema of a recipe for retrieval."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from openvse.errors import nearest
from openvse.specs import RunRecipe
from openvse.specs.model import Part, Strict, TwoTowerSpec
from openvse.specs.recipe import TrainingSpec


class PublishedRecalls(Strict):
    """Results of the paper that a recipe follows. Evaluation shows them too if its protocol is the same.

    Attributes:
        source: paper, table, data set and protocol, in words.
        protocol: the protocol whose choice of sentences they have, or None if all sentences of the data set count.
        num_images: the number of images of the test set.
        folds: the number of folds of the test set whose results are averaged.
        metrics: the results in percent, under the names that evaluation uses.
        parameters: the parameters of parts of the model, such as ``image.aggregator``, in millions, as in the paper.
    """

    source: str
    protocol: str | None = None
    num_images: int = Field(ge=1)
    folds: int = Field(1, ge=1)
    metrics: dict[str, float]
    parameters: dict[str, float] = Field(default_factory=dict)


class RetrievalRecipe(TwoTowerSpec, RunRecipe):
    """Everything that decides a run of retrieval: the model's spec, objective, data, training and seed.

    Attributes:
        objective: the terms of the loss by name. A null term is left out, so that a recipe can drop one of its base.
        published: the results of the paper that the recipe follows.
    """

    task: Literal["retrieval"] = "retrieval"
    objective: dict[str, Part] = Field(min_length=1)
    published: tuple[PublishedRecalls, ...] = ()

    @field_validator("objective", mode="before")
    @classmethod
    def _dropped(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: term for name, term in value.items() if term is not None}

    @field_validator("objective")
    @classmethod
    def _reserved(cls, value: dict[str, Part]) -> dict[str, Part]:
        if "loss" in value:
            raise ValueError("a term is called 'loss', which is the name of their sum: name it otherwise")
        return value

    @field_validator("published", mode="before")
    @classmethod
    def _nothing_published(cls, value: Any) -> Any:
        return () if value is None else value  # so a recipe can drop the published results of its base

    @field_validator("training")
    @classmethod
    def _own_metrics(cls, value: TrainingSpec) -> TrainingSpec:
        plateau = value.plateau.metric if value.plateau else None
        for key, metric in (("plateau.metric", plateau), ("select_by", value.select_by)):
            if metric in (None, "rsum"):
                continue
            from openvse.evaluation.metrics import choosing_metrics  # which imports PyTorch

            if metric not in (names := choosing_metrics()):
                near = nearest(str(metric), names)
                raise ValueError(f"{key} is {metric}{near}: set a metric of validation, {', '.join(names)}")
        return value
