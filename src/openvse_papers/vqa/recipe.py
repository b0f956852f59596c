"""The schema of a recipe for answering questions about images."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from openvse.specs import RunRecipe
from openvse.specs.model import ModelSpec, Part, Strict, TowerSpec


class AnswersSpec(Strict):
    """The answers from which a model chooses.

    Attributes:
        min_count: the training questions below which an answer is left out. 9 is VQA 2.0's "more than 8 times".
    """

    min_count: int = Field(default=9, ge=1)


class HeadSpec(Strict):
    """The layers after the fusion: a feed-forward layer per side, concatenation, one linear layer.

    Attributes:
        dropout: the probability that a feature of the feed-forward layers' update is dropped in training.
    """

    dropout: float = Field(default=0.1, ge=0, lt=1)


class AnswererSpec(ModelSpec):
    """A model that answers questions.

    Attributes:
        image: the side of the images. None is the question-only model.
        fusion: the part in which image and question attend to each other. None without images.
        head: the layers after the fusion.
        answers: the answers from which the model chooses.
    """

    image: TowerSpec | None
    fusion: Part | None = Part(name="score_attention")
    head: HeadSpec = Field(default_factory=HeadSpec)
    answers: AnswersSpec = Field(default_factory=AnswersSpec)

    @model_validator(mode="after")
    def _both_sides_or_one(self) -> AnswererSpec:
        if (self.image is None) != (self.fusion is None):
            raise ValueError(
                "image and fusion go together: without images set both image: null and fusion: null, and an "
                "aggregator of the words such as text.aggregator: score_attention"
            )
        return self

    def identity(self) -> dict[str, Any]:
        return {"task": "vqa", **super().identity()}


class PublishedAccuracy(Strict):
    """Results of the paper that a recipe follows. Evaluation shows them too if the number of questions is the same.

    Attributes:
        source: paper, table, data set and split, in words.
        num_questions: the number of questions of that split.
        metrics: the accuracy of all questions and of each kind in percent, under the names that evaluation uses.
    """

    source: str
    num_questions: int = Field(ge=1)
    metrics: dict[str, float]


class VQARecipe(AnswererSpec, RunRecipe):
    """Everything that decides a run of visual question answering. The loss is binary cross-entropy for each answer."""

    task: Literal["vqa"] = "vqa"
    published: tuple[PublishedAccuracy, ...] = ()

    @model_validator(mode="after")
    def _fits_the_task(self) -> VQARecipe:
        if any(phase.objective for phase in self.training.phases):
            raise ValueError("a phase overrides the objective, and answering has none but cross-entropy: remove it")
        plateau, select_by = self.training.plateau, self.training.select_by
        if {plateau and plateau.metric, select_by} - {None, "accuracy"}:
            raise ValueError("training.plateau.metric or select_by is no metric of answering: set accuracy")
        if self.training.chunk_size is not None:
            raise ValueError("training.chunk_size is for retrieval, whose loss needs the whole batch: remove it")
        if self.data.captions_per_image is not None:
            raise ValueError("data.captions_per_image is for retrieval, and questions are not captions: remove it")
        if isinstance(self.start, Part):
            raise ValueError(f"start: {self.start.name} is for retrieval: name a model to begin from, or remove it")
        if self.data.copies > 1:
            raise ValueError("data.copies is for retrieval, whose loss compares all copies: remove it")
        return self
