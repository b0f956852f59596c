"""Figures inside web pages: well-formed, in the colours of the page, and said in words."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from matplotlib.figure import Figure

from openvse.output.figures import colour, new_figure, svg_element


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
