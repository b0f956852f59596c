import json
from dataclasses import replace
from pathlib import Path

import pytest

from openvse.evaluation.comparison import Comparison
from openvse.evaluation.report import Protocol, Remarks, Report
from tests.naming import names, refusal

RECALLS = {
    f"{side}_r{k}": 10.0 * n
    for n, (side, k) in enumerate(((s, k) for s in ("i2t", "t2i") for k in (1, 5, 10)), start=1)
}
METRICS = {
    **RECALLS,
    "rsum": 210.0,
    "i2t_medr": 2.0,
    "i2t_meanr": 3.25,
    "i2t_nmr": 0.0004,
    "t2i_medr": 4.5,
    "t2i_meanr": 9.0,
    "t2i_nmr": 0.0045,
}


@pytest.fixture
def report() -> Report:
    return Report(
        metrics=METRICS,
        protocol=Protocol("flickr8k test", 1000, 5000, 1, 1024, 7, 1000),
        remarks=Remarks(tied_i2t=3, tied_t2i=0, excluded_i2t=0, excluded_t2i=0),
        intervals={name: (value - 1.5, value + 1.5) for name, value in METRICS.items() if "_r" in name}
        | {"rsum": (200.0, 220.0)},
        chance={**dict.fromkeys(RECALLS, 0.5), "rsum": 3.0, "i2t_meanr": 833.5, "t2i_meanr": 500.5},
        model="0123abcd",
    )


def row(page: str, label: str) -> list[str]:
    """Return the cells of the table row that begins with a label."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")][1:]


def test_the_page_shows_every_figure(report: Report) -> None:
    page = report.to_markdown()
    assert page.startswith("# Retrieval on flickr8k test\n")
    assert row(page, "**this model**") == [f"**{n}.0**" for n in (10, 20, 30, 40, 50, 60, 210)]
    assert row(page, "95% interval")[0] == "8.5 to 11.5"
    assert row(page, "chance") == ["0.5"] * 6 + ["3.0"]
    assert row(page, "image to text") == ["2", "3.2", "833.5", "0.0004"]
    assert row(page, "text to image") == ["4.5", "9.0", "500.5", "0.0045"]
    assert names(page, "1,000 images", "5,000 texts")
    assert names(page, "ties", "3 images", "0 texts")
    assert "1,000 resamples, seed 7" in page
    assert "model 0123abcd" in page
    assert "Problems" not in page and "without a relevant partner" not in page


def test_tables_are_well_formed(report: Report) -> None:
    report = replace(report, published={"VSE++ | 2018": {"i2t_r1": 41.3}})
    tables = [line for line in report.to_markdown().splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in tables} == {9, 6}


def test_published_figures_stand_beside_ours(report: Report) -> None:
    report = replace(report, published={"VSE (2014)": {"i2t_r1": 18.0, "t2i_r1": 12.5}})
    assert row(report.to_markdown(), "VSE (2014)")[:4] == ["18.0", "", "", "12.5"]


def test_what_went_wrong_is_told(report: Report) -> None:
    report = replace(
        report,
        remarks=Remarks(0, 0, 4, 1200),
        protocol=replace(report.protocol, folds=5),
        problems=("a.jpg: the file is empty",),
    )
    page = report.to_markdown()
    assert names(page, "1,000 images", "5,000 texts", "5 folds", "200 images") and "Of 1,000 images" not in page
    uneven = Comparison("toy", {"images": 60, "texts": 300}, 0, 0, folds=7)
    assert names(uneven.about(), "60 images", "300 texts", "7 folds", 8, "9 images")
    assert "fold" not in replace(uneven, folds=1).about()
    assert names(page, "4 images", "1,200 texts")
    assert page.endswith("\n\n- a.jpg: the file is empty\n")


def test_a_bare_report_has_a_page_too(report: Report) -> None:
    bare = Report(METRICS, Protocol("", 2, 2, 1, 16, 0, 0), Remarks(0, 0, 0, 0))
    page = bare.to_markdown()
    assert page.startswith("# Retrieval\n")
    assert "interval" not in page and "| chance |" not in page and "model " not in page.replace("this model", "")


def test_json_holds_everything(report: Report) -> None:
    content = json.loads(report.to_json())
    assert content["metrics"] == METRICS
    assert content["protocol"]["ties"] == "pessimistic"
    assert content["protocol"]["seed"] == 7
    assert content["remarks"]["tied_i2t"] == 3
    assert content["intervals"]["rsum"] == [200.0, 220.0]
    assert content["model"] == "0123abcd"
    assert set(content) == set(Report.__dataclass_fields__) - {"replicates", "outcomes"}


def test_numbers_that_json_lacks_are_refused(report: Report) -> None:
    refusal(ValueError, replace(report, metrics={"rsum": float("nan")}).to_json)


def test_save_writes_both_and_nothing_else(report: Report, tmp_path: Path) -> None:
    folder = report.save(tmp_path / "runs" / "one")
    assert {path.name for path in folder.iterdir()} == {"report.json", "report.md"}
    assert (folder / "report.json").read_text(encoding="utf-8") == report.to_json()
    assert (folder / "report.md").read_text(encoding="utf-8") == report.to_markdown()


def test_a_failed_save_leaves_the_old_report(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path)
    before = (tmp_path / "report.json").read_text(encoding="utf-8")
    refusal(ValueError, replace(report, metrics={**METRICS, "i2t_r1": float("inf")}).save, tmp_path)
    assert (tmp_path / "report.json").read_text(encoding="utf-8") == before
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "report.md"}
