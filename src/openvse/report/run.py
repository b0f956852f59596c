"""A run for a report: model, recipe and records, and its results beside the start's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from openvse.corpus.splits import LEAKAGE
from openvse.errors import OpenVSEError, RecipeError, message_of
from openvse.evaluation.findings import Findings
from openvse.files import read_text
from openvse.model.base import Model
from openvse.model.folder import ModelConfig, read_config
from openvse.specs.load import parse_yaml
from openvse.specs.model import section
from openvse.tasks import task_kind
from openvse.tasks.load import folder_of_model, load
from openvse.tasks.run import RECIPE
from openvse.tasks.runs import NamedRun, find_run
from openvse.training.inputs import AUTO
from openvse.training.kind import Request
from openvse.training.records import METRICS, RunRecords, read_records


@dataclass(frozen=True)
class ReportedRun:
    """A run, or a model without its run, which has neither recipe nor records."""

    named: NamedRun
    model: Path
    config: ModelConfig
    recipe: Mapping[str, Any] | None = None
    records: RunRecords | None = None

    @property
    def name(self) -> str:
        """The name of the run in titles and legends."""
        return self.named.name

    @property
    def best_epoch(self) -> int | None:
        """The epoch of its best model."""
        epoch = section(self.config.provenance, "validation").get("epoch")
        return epoch if isinstance(epoch, int) else None

    def data(self) -> str:
        """Return the source of the data that it was trained on. Raise OpenVSEError if the recipe names none."""
        source = section(self.recipe, "data").get("source")
        if not isinstance(source, str):
            raise OpenVSEError(
                f"{self.named.source} does not name its data: give --on DATA, or --no-test to leave out the "
                f"figures on a test set"
            )
        return source

    def store(self) -> Path | None:
        """Return the feature store that it was trained with, or None. Raise OpenVSEError if it is gone."""
        stated = section(self.recipe, "data").get("features")
        if not isinstance(stated, str):
            return None
        places = [Path(stated)]
        if self.named.folder is not None:
            places = (
                [self.named.folder / "features"] if stated == AUTO else [*places, self.named.folder / stated]
            )
        store = next((place for place in places if place.exists()), None)
        if store is None and stated != AUTO:
            raise OpenVSEError(
                f"{self.named.source} was trained with the feature store {stated}, which is missing: give "
                f"--features STORE, or --no-test"
            )
        return store

    def command(self) -> str | None:
        """Return the command that trains the same again."""
        if self.named.folder is None or self.recipe is None:
            return None
        return f"openvse train {quote(str(self.named.folder / RECIPE))} --out AGAIN"


def read_run(source: str) -> ReportedRun:
    """Read the files of a run about itself."""
    named = find_run(source)
    model = folder_of_model(named.model)
    recipe, records = None, None
    if named.folder is not None and (named.folder / RECIPE).is_file():
        recipe = _read_recipe(named.folder / RECIPE)
        records = read_records(named.folder / METRICS)
    return ReportedRun(named, model, read_config(model), recipe, records)


def _read_recipe(path: Path) -> Mapping[str, Any]:
    try:
        tree = parse_yaml(read_text(path))
    except (OSError, ValueError, RecipeError) as error:
        raise OpenVSEError(
            f"{path} cannot be read ({message_of(error)}): restore it, or name another run"
        ) from error
    if not isinstance(tree, dict):
        raise OpenVSEError(f"{path} is not a recipe: restore it, or name another run")
    return tree


FIRST_HITS = 10
"""The number of first results kept of each query, more than an image of most data sets has captions."""


@dataclass(frozen=True)
class MeasuredReport:
    """A run, how many weights its model has and may have changed, and its results on the test set, if measured."""

    run: ReportedRun
    parameters: int
    trained: int
    fingerprint: str
    findings: Findings | None = None

    @property
    def leaks(self) -> tuple[str, ...]:
        """The lines about test images that the model was trained on."""
        if self.findings is None:
            return ()
        lines = (line for line in self.findings.problems if line.startswith(LEAKAGE))
        return tuple(line.replace("the model", self.run.name, 1) for line in lines)


def weighed(model: Model) -> tuple[int, int, str]:
    """Return the number of weights of a model, the number that may have been trained, and its fingerprint."""
    weights = [*model.parameters()]
    learned = sum(weight.numel() for weight in weights if weight.requires_grad)
    return sum(weight.numel() for weight in weights), learned, model.fingerprint


def measure_run(
    run: ReportedRun, request: Request | None, *, examples: int, device: str = "cpu"
) -> MeasuredReport:
    """Load the best model of a run and evaluate it."""
    model = load(run.model, device=device)
    measured = MeasuredReport(run, *weighed(model))
    if request is None:
        return measured
    evaluation = task_kind(model.task).evaluate([model], replace(request, keep=FIRST_HITS if examples else 0))
    return replace(measured, findings=evaluation.findings(examples))
