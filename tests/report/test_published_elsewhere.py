"""Published figures of the shipped recipes beside a report."""

from dataclasses import replace

import pytest

from openvse.evaluation.report import Findings
from openvse.report.page import published_elsewhere


def report(data: str, num_images: int, folds: int = 1) -> Findings:
    protocols = {5: ("coco_1k",), 1: ("coco_5k",)}[folds]
    return Findings(data, {"num_images": num_images, "folds": folds}, {"rsum": 1.0}, protocols=protocols)


@pytest.mark.medium
def test_figures_of_the_same_data_and_protocol() -> None:
    found = published_elsewhere(report("flickr30k/test", 1000))
    source = "MV-VSE, Table 1: Flickr30K, 1K test"
    assert found[source]["rsum"] == 505.8
    assert all("COCO" not in each for each in found)
    five, whole = (published_elsewhere(report("coco/test", 5000, folds)) for folds in (5, 1))
    assert five and whole and not five.keys() & whole.keys()


@pytest.mark.medium
def test_none_for_other_data_other_splits_and_the_runs_own_recipe() -> None:
    assert published_elsewhere(report("album/test", 1000)) == {}
    assert published_elsewhere(report("flickr30k/validation", 1000)) == {}
    one = report("flickr30k/test", 1000)
    source = "MV-VSE, Table 1: Flickr30K, 1K test"
    assert source not in published_elsewhere(replace(one, beside={source: {"rsum": 505.8}}))
