"""What a report measures: the best model of a run, its untrained twin, and how far it knows the test images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch

from openvse.corpus.splits import LEAKAGE
from openvse.errors import OpenVSEError
from openvse.evaluation.findings import Findings
from openvse.evaluation.metrics import Metrics
from openvse.model import Model
from openvse.report.run import ReportedRun
from openvse.tasks import kind_of
from openvse.tasks.load import load
from openvse.tasks.recipes import START
from openvse.training.kind import Request

KEPT = 10
"""The number of first results of each query that are kept; more than an image of most data sets has captions."""


@dataclass(frozen=True)
class MeasuredReport:
    """A run and what was measured for its report.

    Attributes:
        run: the run.
        parameters: the number of weights of its model.
        trained: the number of those that the run may have changed.
        fingerprint: the fingerprint of its model.
        findings: what its best model reaches on the test set; None if nothing was evaluated.
        before: the label and the metrics of the model before training; None if it was not measured.
    """

    run: ReportedRun
    parameters: int
    trained: int
    fingerprint: str
    findings: Findings | None = None
    before: tuple[str, Metrics] | None = None

    @property
    def leaks(self) -> tuple[str, ...]:
        """The lines about test images that the model was trained on."""
        if self.findings is None:
            return ()
        lines = (line for line in self.findings.problems if line.startswith(LEAKAGE))
        return tuple(line.replace("the model", self.run.name, 1) for line in lines)


def measure_run(
    run: ReportedRun, request: Request | None, *, examples: int, device: str = "cpu", untrained: bool = True
) -> MeasuredReport:
    """Load the best model of a run and evaluate it.

    Args:
        run: the run.
        request: what to evaluate on; None leaves out the figures on a test set.
        examples: the number of best and of worst queries of each kind.
        device: the device to compute on.
        untrained: whether the model before training is measured, too.

    Raises:
        OpenVSEError: the model, the data or a store cannot be used.
    """
    model = load(run.model, device=device)
    weights = [*model.parameters()]
    measured = MeasuredReport(
        run,
        sum(weight.numel() for weight in weights),
        sum(weight.numel() for weight in weights if weight.requires_grad),
        model.fingerprint,
    )
    if request is None:
        return measured
    kind = kind_of(model.task)
    evaluation = kind.evaluate([model], replace(request, keep=KEPT if examples else 0))
    measured = replace(measured, findings=kind.findings(evaluation, examples))
    if not untrained:
        return measured
    label, twin = before_training(run, model, device)
    plain = replace(request, resamples=0, keep=0)
    return replace(measured, before=(label, kind.findings(kind.evaluate([twin], plain), 0).metrics))


def before_training(run: ReportedRun, trained: Model, device: str) -> tuple[str, Model]:
    """Return the model that a run began from, with a label: its start, or new weights beside the frozen ones.

    Weights that training does not change are those of the trained model. A backbone that is fine-tuned begins at
    random here, although the run began from pretrained weights, which its folder does not keep.
    """
    start = None if run.named.folder is None else run.named.folder / START
    if start is not None and start.is_dir():
        return "before training (its start)", load(start, device=device)
    twin = kind_of(trained.task).build(run.config.spec, run.model)
    frozen = {name for name, weight in twin.named_parameters() if not weight.requires_grad}
    learned = {name for name, _ in twin.named_parameters()} - frozen
    state = cast("dict[str, torch.Tensor]", trained.state_dict())
    try:
        twin.load_state_dict(
            {name: value for name, value in state.items() if name not in learned}, strict=False
        )
    except RuntimeError as error:
        raise OpenVSEError(
            f"the model of {run.named.source} cannot be built without its training: give --no-untrained"
        ) from error
    return "untrained", twin.to(device).eval()
