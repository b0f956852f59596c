"""Visual question answering as one of the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from openvse.specs import RunRecipe
from openvse.specs.model import ModelSpec
from openvse.training.kind import Compared, Evaluation, LoadedRun, Request, TaskKind
from openvse_papers.vqa.recipe import AnswererSpec, VQARecipe

if TYPE_CHECKING:
    from openvse.model.base import Model
    from openvse.training.inputs import RunInputs
    from openvse.training.task import AnyTask
    from openvse_papers.vqa.answerer import Answerer


class VQA(TaskKind):
    """The task of answering questions about images."""

    recipe: ClassVar[type[RunRecipe]] = VQARecipe
    spec: ClassVar[type[ModelSpec]] = AnswererSpec

    def build(self, tree: Mapping[str, Any], folder: Path) -> Answerer:
        from openvse_papers.vqa.answerer import build_answerer

        return build_answerer(AnswererSpec.of(tree), assets=folder)

    def open(self, recipe: RunRecipe, inputs: RunInputs) -> AnyTask:
        from openvse_papers.vqa.training import open_answering

        return open_answering(cast(VQARecipe, recipe), inputs)

    def evaluate(self, models: Sequence[Model], request: Request) -> Evaluation:
        from openvse_papers.vqa.evaluate import evaluate_answerer

        return evaluate_answerer(cast("Sequence[Answerer]", models), request)

    def compare(self, runs: Iterable[LoadedRun], request: Request) -> Compared:
        from openvse_papers.vqa.evaluate import compare_answerers

        return compare_answerers(runs, request)
