"""What a recipe for answering questions about images may say."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from openvse.specs import ModelSpec, Part, RunRecipe, Strict, TowerSpec


class AnswersSpec(Strict):
    """The answers that a model chooses from.

    Attributes:
        min_count: answers to fewer training questions are left out; 9 is VQA 2.0's "more than 8 times".
    """

    min_count: int = Field(default=9, ge=1)


class HeadSpec(Strict):
    """What follows the fusion: a feed-forward layer a side, concatenation, one linear layer.

    Attributes:
        dropout: probability that a feature of the feed-forward layers' update is dropped in training.
    """

    dropout: float = Field(default=0.1, ge=0, lt=1)


class AnswererSpec(ModelSpec):
    """A model that answers questions.

    Attributes:
        image: the side of the images; None is the question-only model.
        fusion: lets image and question read each other; None without images.
        head: what follows the fusion.
        answers: which answers it chooses from.
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
        """Return what tells this model from others with the same weights."""
        return {"task": "vqa", **super().identity()}


class PublishedAccuracy(Strict):
    """Figures of the paper that a recipe follows; evaluation shows them beside ours on as many questions.

    Attributes:
        source: paper, table, data set and split, in words.
        num_questions: of that split.
        metrics: accuracy of all questions and of each kind, under the names that evaluation uses, in percent.
    """

    source: str
    num_questions: int = Field(ge=1)
    metrics: dict[str, float]


class VQARecipe(AnswererSpec, RunRecipe):
    """Everything that decides a run of visual question answering; the loss is binary cross-entropy for each answer.

    Attributes:
        published: figures of the paper that the recipe follows.
    """

    task: Literal["vqa"] = "vqa"
    published: tuple[PublishedAccuracy, ...] = ()

    @model_validator(mode="after")
    def _fits_the_task(self) -> VQARecipe:
        if any(phase.objective for phase in self.training.phases):
            raise ValueError(
                "a phase overrides the objective, and answering has none but cross-entropy: remove it"
            )
        if self.training.plateau is not None and self.training.plateau.metric != "accuracy":
            raise ValueError("training.plateau.metric is not one of answering: set metric: accuracy")
        if self.data.captions_per_image is not None:
            raise ValueError(
                "data.captions_per_image is of retrieval, and questions are no captions: remove it"
            )
        return self
