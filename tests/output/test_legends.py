"""Legends fit their figure, however many names there are and however long they are."""

import xml.etree.ElementTree as ET

import pytest
from matplotlib.figure import Figure

from openvse.output.figures import COLUMN, PAGE, colour, legend_below, new_figure, styled, svg_element

LONG = "a model of which the name is longer than a column of a paper is wide, with the seed"


@pytest.mark.medium
@pytest.mark.parametrize("width", [COLUMN, PAGE])
@pytest.mark.parametrize("names", [["a", "b"], [LONG], [f"{LONG} {n}" for n in range(6)], ["x" * 30] * 1 + [LONG]])
def test_a_legend_is_inside_and_leaves_room(width: float, names: list[str]) -> None:
    with styled():
        figure = new_figure(width, 2.4)
        axes = figure.subplots()
        for number, name in enumerate(names):
            axes.plot([0, 1], [0, number], label=name)
        legend_below(figure, axes)
        figure.canvas.draw()
        (legend,) = figure.legends
        box, whole = legend.get_window_extent(), figure.bbox
        assert box.x0 >= 0 and box.x1 <= whole.x1 and box.y0 >= 0
        assert axes.get_window_extent().height > 1.2 * figure.dpi
        shown = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
    assert shown == [*dict.fromkeys(names)]


@pytest.mark.medium
def test_axes_that_share_names_have_one_legend() -> None:
    with styled():
        figure = new_figure(PAGE, 2.4)
        for axes in figure.subplots(1, 2):
            for name in ("a", "b"):
                axes.plot([0, 1], [0, 1], label=name)
        legend_below(figure, *figure.axes)
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


@pytest.mark.medium
def test_a_figure_becomes_an_element_that_follows_its_page() -> None:
    def draw() -> Figure:
        figure = new_figure(3.0, 2.0)
        axes = figure.subplots()
        axes.plot([0.0, 1.0, 2.0], [0.0, 5.0, 10.0], color=colour(1))
        axes.set_xlabel("epoch")
        return figure

    element = svg_element(draw, "RSUM of a & b")
    tree = ET.fromstring(element)
    assert tree.attrib["aria-label"] == "RSUM of a & b" and tree.attrib["role"] == "img"
    assert {"epoch", "0", "10"} <= {text.text for text in tree.iter("text")}
    assert colour(1).lower() in element and "currentColor" in element and "#000000" not in element
    assert "http" not in element
    assert element == svg_element(draw, "RSUM of a & b")
