"""Line charts: what is drawn, where, and how they say it in words."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from openvse.output.charts import Line, line_chart


def points(chart: str) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in found.split())]
        for found in re.findall(r'points="([^"]*)"', chart)
    ]


def test_a_chart_is_well_formed_and_its_lines_go_where_the_values_are() -> None:
    chart = line_chart([Line("a & b", [0.0, 1.0, 2.0], [0.0, 5.0, 10.0], 1)], x="epoch", y="RSUM")
    tree = ET.fromstring(chart)
    assert tree.attrib["aria-label"] == "RSUM over epoch: a & b from 0 to 10"
    ((first, middle, last),) = points(chart)
    assert first[0] < middle[0] < last[0] and first[1] > middle[1] > last[1]
    assert middle[1] == pytest.approx((first[1] + last[1]) / 2, abs=0.1)
    labels = [text.text for text in tree.iter("text")]
    assert {"0", "5", "10", "epoch"} <= set(labels)


def test_one_point_and_constant_lines_have_a_place() -> None:
    assert points(line_chart([Line("one", [3.0], [7.0])], x="x", y="y")) == [[(199.0, 96.0)]]
    ((left, right),) = points(line_chart([Line("same", [1.0, 2.0], [0.0, 0.0])], x="x", y="y"))
    assert left[1] == right[1]


def test_long_lines_are_thinned_by_means() -> None:
    values = [float(n % 2) for n in range(10_000)]
    (drawn,) = points(
        line_chart([Line("long", [float(n) for n in range(10_000)], values)], x="x", y="y", bounds=(0.0, 1.0))
    )
    assert len(drawn) <= 240
    assert {y for _, y in drawn} == {96.0}  # half way up: the mean of 0 and 1


def test_lines_for_comparison_are_plain() -> None:
    chart = line_chart([Line("as it should be", [0.0, 1.0], [0.0, 1.0], None)], x="x", y="y")
    assert 'class="plain"' in chart and "<circle" not in chart


def test_values_of_a_wide_range_get_a_logarithmic_axis() -> None:
    chart = line_chart([Line("loss", [0.0, 1.0, 2.0], [10_000.0, 100.0, 1.0])], x="step", y="loss")
    ((_, first), (_, middle), (_, last)) = points(chart)[0]
    assert middle == pytest.approx((first + last) / 2, abs=0.1)
    assert {"10,000", "1"} <= {text.text for text in ET.fromstring(chart).iter("text")}
    narrow = line_chart([Line("loss", [0.0, 1.0], [200.0, 1.0])], x="step", y="loss")
    assert "10,000" not in narrow and ">200<" in narrow
