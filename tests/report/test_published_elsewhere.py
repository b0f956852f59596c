"""Published figures of the shipped recipes beside a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from openvse.evaluation.findings import Findings
from openvse.model.folder import ModelConfig
from openvse.report.page import published_elsewhere
from openvse.report.run import MeasuredReport, ReportedRun
from openvse.tasks.runs import NamedRun


def report(data: str, num_images: int, folds: int = 1) -> MeasuredReport:
    protocols = {5: ("coco_1k",), 1: ("coco_5k",)}[folds]
    run = ReportedRun(NamedRun("run", "run"), Path("run"), ModelConfig("retrieval", {}, {}))
    return MeasuredReport(
        run,
        1,
        1,
        "f",
        Findings(data, {"num_images": num_images, "folds": folds}, {"rsum": 1.0}, protocols=protocols),
    )


@pytest.mark.medium
def test_figures_of_the_same_data_and_protocol() -> None:
    found = published_elsewhere([report("flickr30k/test", 1000)])
    source = "MV-VSE, Table 1: Flickr30K, 1K test"
    assert found[source]["rsum"] == 505.8
    assert all("COCO" not in each for each in found)
    five, whole = (published_elsewhere([report("coco/test", 5000, folds)]) for folds in (5, 1))
    assert five and whole and not five.keys() & whole.keys()


@pytest.mark.medium
def test_none_for_other_data_other_splits_and_the_runs_own_recipe() -> None:
    assert published_elsewhere([report("album/test", 1000)]) == {}
    assert published_elsewhere([report("flickr30k/validation", 1000)]) == {}
    one = report("flickr30k/test", 1000)
    source = "MV-VSE, Table 1: Flickr30K, 1K test"
    assert one.findings is not None
    own = replace(one, findings=replace(one.findings, beside={source: {"rsum": 505.8}}))
    assert source not in published_elsewhere([own])
