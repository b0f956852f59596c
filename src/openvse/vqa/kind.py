"""Visual question answering as one of the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from openvse.errors import ModelError
from openvse.specs import ModelSpec, RunRecipe
from openvse.training.kind import Compared, Evaluation, LoadedRun, Request, TaskKind
from openvse.vqa.recipe import AnswererSpec, VQARecipe

if TYPE_CHECKING:
    from openvse.evaluation.findings import Findings
    from openvse.model import Model
    from openvse.training.inputs import RunInputs
    from openvse.training.task import AnyTask
    from openvse.vqa.answerer import Answerer
    from openvse.vqa.evaluate import AnswersEvaluation


class VQA(TaskKind):
    """The task of answering questions about images."""

    recipe: ClassVar[type[RunRecipe]] = VQARecipe
    spec: ClassVar[type[ModelSpec]] = AnswererSpec

    def build(self, tree: Mapping[str, Any], folder: Path) -> Answerer:
        from openvse.vqa.build import build_answerer

        return build_answerer(AnswererSpec.of(tree), assets=folder)

    def open(self, recipe: RunRecipe, inputs: RunInputs) -> AnyTask:
        from openvse.vqa.training import open_answering

        return open_answering(cast(VQARecipe, recipe), inputs)

    def evaluate(self, models: Sequence[Model], request: Request) -> Evaluation:
        from openvse.vqa.evaluate import evaluate_answerer

        return evaluate_answerer(cast("Sequence[Answerer]", models), request)

    def findings(self, evaluation: Evaluation, count: int) -> Findings:
        """Return the figures, and the questions that the model answers right or wrong most confidently."""
        from openvse.vqa.evaluate import findings_of

        return findings_of(cast("AnswersEvaluation", evaluation), count)

    def compare(self, runs: Iterable[LoadedRun], request: Request) -> Compared:
        from openvse.vqa.compare import compare_answerers

        return compare_answerers(runs, request)

    def score(self, evaluation: Evaluation) -> tuple[str, float]:
        """Return the accuracy; raise ModelError where there are no answers to compare with."""
        report = cast("AnswersEvaluation", evaluation).report
        if report is None:
            raise ModelError("the questions have no answers to compare with: give data that have")
        return "accuracy", report.scores["accuracy"]
