"""The task ``momentum``: retrieval whose loss also has negatives of earlier batches. It imports PyTorch late."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, cast

from pydantic import Field

from openvse.errors import RecipeError
from openvse.retrieval.kind import Retrieval
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.specs import RunRecipe
from openvse.specs.load import validated
from openvse.specs.model import Part, Strict

if TYPE_CHECKING:
    from openvse.model.base import Model
    from openvse.retrieval.training import RetrievalTask
    from openvse.training.inputs import RunInputs
    from openvse.training.task import AnyTask


class MomentumSpec(Strict):
    """The moving average of the towers, and the loss against the queues of its embeddings.

    Attributes:
        decay: m, the share of the average that stays at a step: 0.999 looks back over about 1,000 steps.
        queue: Q, the number of images, and of texts, of earlier batches that are negatives. 0 is retrieval as it is.
        weight: the factor of the loss, whose term is called ``momentum``.
        miner: the part that chooses the negatives of each anchor in a queue.
        criterion: the part that turns a pair and its negatives into a loss.
        reduction: the sum or the mean over the positive pairs of the batch.
    """

    decay: float = Field(default=0.999, ge=0, le=1)
    queue: int = Field(default=2048, ge=0)
    weight: float = 1.0
    miner: Part = Part(name="all")
    criterion: Part = Part(name="info_nce")
    reduction: Literal["sum", "mean"] = "mean"


class MomentumRecipe(RetrievalRecipe):
    """Any recipe for retrieval, with ``task: momentum`` and this section.

    Attributes:
        momentum: the moving average and its queues.
    """

    task: Literal["momentum"] = "momentum"  # type: ignore[assignment]
    momentum: MomentumSpec = Field(default_factory=MomentumSpec)

    def wrapped(self) -> RetrievalRecipe:
        """Return the recipe without the queues, as the task of retrieval reads it."""
        tree = {key: value for key, value in self.to_dict().items() if key != "momentum"}
        return validated(RetrievalRecipe, tree | {"task": "retrieval"})


class Momentum(Retrieval):
    """The task of retrieval with queues. Its models are models of retrieval."""

    recipe: ClassVar[type[RunRecipe]] = MomentumRecipe

    def open(self, recipe: RunRecipe, inputs: RunInputs) -> AnyTask | Model:
        from openvse.model.base import Model
        from openvse_alignment.momentum import MomentumTask, QueueContrast

        recipe = cast(MomentumRecipe, recipe)
        if "momentum" in recipe.objective:
            raise RecipeError("objective.momentum has the name of the term of task: momentum: name it otherwise")
        if recipe.training.graphs == "on":
            raise RecipeError("training.graphs: on repeats a step, but each step has another queue: set it to off")
        term = QueueContrast.of(recipe.momentum)  # refused before hours of extraction
        task = super().open(recipe.wrapped(), inputs)
        if isinstance(task, Model) or recipe.momentum.queue == 0:
            return task
        return MomentumTask(cast("RetrievalTask", task), recipe.momentum, term)
