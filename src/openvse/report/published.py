"""Published figures of the methods that openvse has recipes for, on the data and under the protocol of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from openvse.evaluation.findings import Findings
from openvse.evaluation.metrics import Metrics
from openvse.report.measure import MeasuredReport
from openvse.specs import list_recipes, read_recipe
from openvse.training.kind import published_for


def published_elsewhere(reports: Sequence[MeasuredReport]) -> dict[str, Metrics]:
    """Return the figures that papers publish for the data set of the reports, by their source.

    The figures of the recipe of a run are in its own findings and not here. A shipped recipe is about the data set
    whose name its own begins with: ``vse_infinity/flickr30k_regions_bert`` is about ``flickr30k``.

    Args:
        reports: the runs; those that were not evaluated have nothing to compare with.
    """
    found: dict[str, Metrics] = {}
    for findings in {each.findings.data: each.findings for each in reports if each.findings}.values():
        found |= dict(_published(findings))
    own = {label for each in reports if each.findings for label in each.findings.beside}
    return {source: metrics for source, metrics in found.items() if source not in own}


def _published(findings: Findings) -> Iterator[tuple[str, Metrics]]:
    data, _, split = findings.data.partition("/")
    if not data or split != "test":
        return
    for name in list_recipes():
        if name.partition("/")[2].startswith(f"{data}_"):
            yield from published_for(read_recipe(name), findings.size).items()
