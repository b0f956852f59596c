"""Retrieval as one of the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from openvse.retrieval.recipe import RetrievalRecipe
from openvse.specs import RunRecipe
from openvse.specs.model import ModelSpec, TwoTowerSpec
from openvse.training.kind import Compared, Evaluation, LoadedRun, Request, TaskKind

if TYPE_CHECKING:
    from openvse.model.base import Model
    from openvse.model.two_tower import TwoTower
    from openvse.training.inputs import RunInputs
    from openvse.training.task import AnyTask


class Retrieval(TaskKind):
    """The task of retrieval: images for sentences and sentences for images."""

    recipe: ClassVar[type[RunRecipe]] = RetrievalRecipe
    spec: ClassVar[type[ModelSpec]] = TwoTowerSpec

    def build(self, tree: Mapping[str, Any], folder: Path) -> TwoTower:
        from openvse.retrieval.build import build_model

        return build_model(TwoTowerSpec.of(tree), assets=folder)

    def open(self, recipe: RunRecipe, inputs: RunInputs) -> AnyTask | Model:
        from openvse.retrieval.training import open_retrieval

        return open_retrieval(cast(RetrievalRecipe, recipe), inputs)

    def evaluate(self, models: Sequence[Model], request: Request) -> Evaluation:
        from openvse.retrieval.evaluate import evaluate_towers

        return evaluate_towers(cast("Sequence[TwoTower]", models), request)

    def compare(self, runs: Iterable[LoadedRun], request: Request) -> Compared:
        from openvse.retrieval.evaluate import compare_towers

        return compare_towers(runs, request)
