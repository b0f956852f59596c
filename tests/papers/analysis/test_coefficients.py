"""Learned coefficients beside those of fixed poolings, and how results are written."""

import csv
from pathlib import Path

import pytest
import torch

from openvse.errors import OpenVSEError
from openvse.output.table import Table
from openvse_papers.analysis.attention import analyze_coefficients, k_max, learned_curves
from openvse_papers.analysis.opening import Analysis, refuse_written
from tests.papers.analysis.small import is_png, named, plain, small_model


def test_curves_are_those_of_the_pooling() -> None:
    model = plain()
    found = learned_curves(named(model), [3, 7])
    assert [(c.side, c.size, len(c.values)) for c in found] == [
        ("image", 3, 3), ("image", 7, 7), ("text", 3, 3), ("text", 7, 7)
    ]  # fmt: skip
    with torch.inference_mode():
        expected = model.image.aggregator.coefficients(torch.tensor([7]))[0]
    torch.testing.assert_close(torch.tensor(found[1].values), expected)
    assert all(sum(c.values) == pytest.approx(1.0, abs=1e-5) for c in found)


def test_views_have_curves_of_their_own() -> None:
    model = small_model({"name": "multi_view", "num_views": 2}, "fs_pool")
    found = learned_curves(named(model), [4])
    assert [(c.side, c.pool) for c in found] == [("image", "view 1"), ("image", "view 2"), ("text", "")]
    knots = model.text.aggregator.knots.detach()
    assert found[2].values[0] == pytest.approx(knots[0].mean().item(), abs=1e-5)
    assert found[2].values[-1] == pytest.approx(knots[-1].mean().item(), abs=1e-5)


def test_k_max_lies_between_max_and_mean() -> None:
    assert k_max(3, 1) == [1, 0, 0]
    assert k_max(4, 2) == [0.5, 0.5, 0, 0]
    assert k_max(2, 5) == [0.5, 0.5]


def test_models_without_coefficients_are_refused() -> None:
    with pytest.raises(OpenVSEError, match="Mean, Max"):
        analyze_coefficients(named(small_model("mean", "max")))


@pytest.mark.medium
def test_figures_and_numbers_are_written(tmp_path: Path) -> None:
    found = analyze_coefficients(named(plain()), [3, 7])
    written = found.write(tmp_path / "out")
    assert [path.name for path in written] == ["coefficients.csv", "coefficients.png", "coefficients.svg"]
    rows = [*csv.DictReader((tmp_path / "out" / "coefficients.csv").open())]
    assert len(rows) == 2 * (3 + 7)
    assert (rows[0]["max"], rows[1]["max"], rows[0]["mean"]) == ("1.0", "0.0", str(1 / 3))
    assert [row["k_max_5"] for row in rows[3:10]] == ["0.2"] * 5 + ["0.0"] * 2
    assert is_png(written[1])
    svg = written[2].read_text()
    assert "images, 7 elements" in svg and "5-max" in svg
    again = found.write(tmp_path / "again")[2].read_text()
    assert again == svg  # equal numbers give equal files
    with pytest.raises(OpenVSEError, match="coefficients.csv.*coefficients.png.*coefficients.svg"):
        found.write(tmp_path / "out")
    found.write(tmp_path / "out", overwrite=True)


def test_only_files_of_the_same_analysis_are_in_the_way(tmp_path: Path) -> None:
    for name in ("views.png", "coefficients.txt", "coefficients2.png"):
        (tmp_path / name).touch()
    refuse_written(tmp_path, "coefficients", overwrite=False)
    (tmp_path / "coefficients_of_views.csv").touch()
    with pytest.raises(OpenVSEError, match="coefficients_of_views.csv"):
        refuse_written(tmp_path, "coefficients", overwrite=False)
    refuse_written(tmp_path, "coefficients", overwrite=True)


def test_tables_keep_all_digits_and_show_few() -> None:
    table = Table(("a", "b,c", "right"), [(1 / 3, 'say "x"', True)])
    assert table.to_csv() == f'a,"b,c",right\n{1 / 3},"say ""x""",True\n'
    assert table.to_markdown(2).splitlines()[2] == '| 0.33 | say "x" | yes |'
    assert Analysis("x", table, {"": table}).tables[""].to_json() == [{"a": 1 / 3, "b,c": 'say "x"', "right": True}]
